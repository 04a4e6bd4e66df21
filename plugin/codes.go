package plugin

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"azure-kms-plugin/keyvault"
)

// CodeFor returns the gRPC code of a failure. kube-apiserver counts calls by
// it, so it is part of the interface; Unknown is never one.
func CodeFor(e *keyvault.Error) codes.Code {
	switch e.Reason {
	case keyvault.KeyDisabled, keyvault.KeyDeleted, keyvault.KeyNotFound,
		keyvault.KeyExpired, keyvault.KeyNotYetValid, keyvault.VaultNotFound:
		return codes.FailedPrecondition
	case keyvault.AccessDenied, keyvault.NetworkDenied, keyvault.OperationNotPermitted, keyvault.CredentialsRefused:
		return codes.PermissionDenied
	case keyvault.Unreachable, keyvault.CredentialsUnavailable, keyvault.Unknown:
		return codes.Unavailable
	case keyvault.Throttled:
		return codes.ResourceExhausted
	case keyvault.BadCiphertext, keyvault.BadRequest:
		return codes.InvalidArgument
	case keyvault.UnknownKey:
		return codes.NotFound
	case keyvault.Canceled:
		return codes.Canceled
	}
	return codes.Internal
}

// statusOf turns err into what the caller is told. Only the text of a
// keyvault.Error is known to be safe, so it is the only one passed on.
func statusOf(err error) (*status.Status, keyvault.Reason) {
	if e, ok := errors.AsType[*keyvault.Error](err); ok {
		return status.New(CodeFor(e), e.Error()), e.Reason
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return status.New(codes.DeadlineExceeded, string(keyvault.Unreachable)+": no answer within the caller's deadline"), keyvault.Unreachable
	case errors.Is(err, context.Canceled):
		return status.New(codes.Canceled, string(keyvault.Canceled)+": the caller gave up"), keyvault.Canceled
	}
	return status.New(codes.Internal, string(keyvault.Unknown)+": internal error, see the plugin's log"), keyvault.Unknown
}

// badRequest blames the caller. The text must hold nothing of a payload.
func badRequest(op keyvault.Op, text string) *keyvault.Error {
	return &keyvault.Error{Op: op, Reason: keyvault.BadRequest, Text: text}
}
