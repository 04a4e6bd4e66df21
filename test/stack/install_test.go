package stack_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// docs/install.md: Kubernetes takes each of its pods, or parts of pods, without an
// unknown field, and kube-apiserver and the plugin see the socket at the same path.
func TestInstallPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/install.md")
	require.NoError(t, err)
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	var pods []corev1.Pod
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1) {
		var pod corev1.Pod
		_, _, err := strict.Decode(block[1], &kind, &pod)
		require.NoError(t, err, "%s", block[1])
		pods = append(pods, pod)
	}
	require.Len(t, pods, 3)

	manifest, err := os.ReadFile("../../manifests/encryption-configuration.yaml")
	require.NoError(t, err)
	require.Contains(t, string(manifest), "endpoint: unix:///opt/azurekms.socket\n")
	const dir = "/opt"
	sources := map[string]string{}
	for _, pod := range pods {
		require.Len(t, pod.Spec.Containers, 1)
		volumes := map[string]corev1.VolumeSource{}
		for _, v := range pod.Spec.Volumes {
			volumes[v.Name] = v.VolumeSource
		}
		for _, m := range pod.Spec.Containers[0].VolumeMounts {
			require.Contains(t, volumes, m.Name)
			if source := volumes[m.Name]; m.MountPath == dir && source.HostPath != nil {
				sources[pod.Spec.Containers[0].Name] = source.HostPath.Path
			}
		}
	}
	require.Equal(t, map[string]string{"azure-kms-plugin": "/var/lib/azure-kms", "kube-apiserver": "/var/lib/azure-kms"}, sources)
}
