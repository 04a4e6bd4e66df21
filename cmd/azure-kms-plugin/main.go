// Command azure-kms-plugin serves the Kubernetes KMS v2 API from a key in
// Azure Key Vault or Managed HSM. It takes the place of Azure/kubernetes-kms
// and of OpenShift's fork of it, with the same flags.
//
// Beside serve, which needs no name, it has the commands status and doctor for people on
// the node; they change nothing.
//
// # Exit status
//
// That of status and doctor is health/status's. That of serve:
//
//	0   served, and stopped when asked to; or the help or version was printed
//	1   serving ended by a fault, or was cut short by a second signal
//	64  wrong use: a flag, a variable, azure.json, a port or the socket must be mended
//
// A vault that cannot be reached or says no never ends the process: a restart
// cannot mend a vault.
//
// # Signals
//
// SIGTERM, SIGINT and SIGHUP let calls in flight end, for ten seconds at most,
// and remove the socket. A second signal cuts them off. SIGPIPE is ignored, so
// that a log reader that goes away does not take the plugin with it.
package main

import (
	"context"
	"io"
	"os"

	"google.golang.org/grpc/grpclog"
)

// Exit statuses, see the package documentation.
const (
	exitOK    = 0
	exitFault = 1
	exitUsage = 64
)

func main() {
	// grpc's own log can be switched on from the environment and shows what
	// clients send. Ours says what is needed.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	stop := watchSignals()
	os.Exit(run(context.Background(), stop, os.Args[1:], os.Stdout, os.Stderr))
}
