package plugin

import (
	"fmt"
	"strings"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// stray answers calls of anything but KMS v2. kube-apiserver repeats them for
// as long as its configuration is wrong, so one line in the log has to do.
func (s *Server) stray(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	text := fmt.Sprintf("%.100q is not served: this plugin speaks KMS v2 only", method)
	if strings.HasPrefix(method, "/v1beta1.") {
		text = "KMS v1 is not served: set apiVersion v2 in the provider of kube-apiserver's EncryptionConfiguration; docs/compatibility.md says how to move data that was written with v1"
	}
	s.strays.Do(func() { s.log.Warn("call of another API refused", zap.String("text", text)) })
	return status.Error(codes.Unimplemented, text)
}
