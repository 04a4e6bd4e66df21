package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The pod that the page on installing shows starts with its arguments, and what they
// name is mounted.
func TestInstallPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/install.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1)
	require.Len(t, blocks, 3)
	var pod struct {
		Spec struct {
			Containers []struct {
				Args         []string
				VolumeMounts []struct {
					MountPath string `yaml:"mountPath"`
				} `yaml:"volumeMounts"`
				LivenessProbe struct {
					HTTPGet struct {
						Path string
						Port string
					} `yaml:"httpGet"`
				} `yaml:"livenessProbe"`
				ReadinessProbe any `yaml:"readinessProbe"`
			}
		}
	}
	require.NoError(t, yaml.NewDecoder(bytes.NewReader(blocks[0][1])).Decode(&pod))
	require.Len(t, pod.Spec.Containers, 1)
	c := pod.Spec.Containers[0]
	o, faults := parse(c.Args)
	require.Empty(t, faults)
	require.Empty(t, o.warnings)
	var mounted []string
	for _, m := range c.VolumeMounts {
		mounted = append(mounted, m.MountPath)
	}
	require.ElementsMatch(t, []string{filepath.Dir(o.address.Path), filepath.Dir(o.configFile)}, mounted)
	require.Equal(t, mounted[0], o.memoryDir())
	require.Equal(t, ":"+c.LivenessProbe.HTTPGet.Port, o.healthzAddr)
	require.Equal(t, "/livez", c.LivenessProbe.HTTPGet.Path)
	require.Nil(t, c.ReadinessProbe)
}
