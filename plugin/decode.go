package plugin

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	kmsapi "k8s.io/kms/apis/v2"

	"azure-kms-plugin/keyvault"
)

// gRPC answers a request that cannot be decoded with Internal, and tells no
// interceptor. To count and answer it as what it is, bad input like any other,
// the error takes a way around: the codec puts it in an envelope, and the
// interceptors find it instead of the call.

// An envelope is a message to decode and how that went.
type envelope struct {
	msg any
	err error
}

type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if e, ok := v.(*envelope); ok {
		e.err = c.CodecV2.Unmarshal(data, e.msg)
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// desc is the description of the KMS v2 service with such decoding.
func desc() *grpc.ServiceDesc {
	d := kmsapi.KeyManagementService_ServiceDesc
	d.Methods = slices.Clone(d.Methods)
	for i, m := range d.Methods {
		d.Methods[i].Handler = func(srv any, ctx context.Context, dec func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			var e envelope
			decode := func(msg any) error {
				e.msg = msg
				return dec(&e)
			}
			guard := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				if e.err != nil {
					next = func(context.Context, any) (any, error) {
						return nil, badRequest(keyvault.Op(opOf(info.FullMethod)), "the request is not a KMS v2 message")
					}
				}
				return intercept(ctx, req, info, next)
			}
			return m.Handler(srv, ctx, decode, guard)
		}
	}
	return &d
}
