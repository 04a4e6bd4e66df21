// Command kube-apiserver is the unmodified Kubernetes API server, built from
// its module so that the end-to-end tests drive the plugin with the real
// client.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
