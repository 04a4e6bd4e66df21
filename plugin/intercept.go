package plugin

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"azure-kms-plugin/keyvault"
)

// A note is filled in by a call for the interceptors around it.
type note struct {
	keyID string
	key   keyvault.Ref
}

type noteKey struct{}

func noteOf(ctx context.Context) *note {
	if n, ok := ctx.Value(noteKey{}).(*note); ok {
		return n
	}
	return &note{}
}

// belongs notes that a call was about keyID, if the keyring says that key has
// that ID: a caller can make up any number of others.
func (n *note) belongs(keyID string, key keyvault.Ref) {
	if key.Version != "" && slices.Contains(key.KeyIDs(), keyID) {
		n.keyID, n.key = keyID, key
	}
}

// measure times a call, turns its error into what the caller may see, and
// reports both: to Observe always, to the log once if it failed.
func (s *Server) measure(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	s.calls.begin()
	defer s.calls.end()
	if s.self.own(ctx) {
		return s.self.ours(ctx, req, next)
	}
	n := &note{}
	r := Request{Op: opOf(info.FullMethod), Reason: keyvault.Success}
	start := time.Now()
	resp, err := next(context.WithValue(ctx, noteKey{}, n), req)
	r.Took, r.KeyID, r.Key = time.Since(start), n.keyID, n.key
	if err == nil {
		s.cfg.Observe(r)
		s.logCall(zapcore.DebugLevel, "call served", r, req)
		return resp, nil
	}
	st, reason := statusOf(err)
	r.Code, r.Reason = st.Code(), reason
	s.cfg.Observe(r)
	if silenced, ok := s.failures.admit(failure{r.Op, r.Reason}, time.Now()); ok {
		level := zapcore.ErrorLevel
		if reason.Kind() == keyvault.KindCaller {
			level = zapcore.WarnLevel
		}
		fields := []zap.Field{zap.String("error", st.Message())}
		if !isSafe(err) {
			// The type is all that may be shown of it.
			fields = append(fields, zap.String("error_type", fmt.Sprintf("%T", err)))
		}
		if silenced > 0 {
			fields = append(fields, zap.Int("not_logged_before", silenced))
		}
		s.logCall(level, "call failed", r, req, fields...)
	}
	return nil, st.Err()
}

// recovered makes a panic the failure of one call. The panic's value and the
// arguments on the stack may hold a plaintext, so only names are logged.
func (s *Server) recovered(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic in a call", zap.String("type", fmt.Sprintf("%T", p)), zap.Strings("frames", frames(3)))
			resp, err = nil, panicked{}
		}
	}()
	return next(ctx, req)
}

type panicked struct{}

func (panicked) Error() string { return "panic" }

// frames names the functions on the stack, innermost first.
func frames(skip int) []string {
	pcs := make([]uintptr, 32)
	var out []string
	for it := runtime.CallersFrames(pcs[:runtime.Callers(skip, pcs)]); ; {
		f, more := it.Next()
		out = append(out, fmt.Sprintf("%s:%d %s", f.File[strings.LastIndexByte(f.File, '/')+1:], f.Line, f.Function))
		if !more {
			return out
		}
	}
}

// logCall writes one line about a call and nothing of what it carried.
func (s *Server) logCall(level zapcore.Level, msg string, r Request, req any, more ...zap.Field) {
	ce := s.log.Check(level, msg)
	if ce == nil {
		return
	}
	fields := []zap.Field{
		zap.String("op", string(r.Op)),
		zap.String("reason", string(r.Reason)),
		zap.Stringer("code", r.Code),
		zap.Duration("dur", r.Took),
	}
	if u, ok := req.(interface{ GetUid() string }); ok && u.GetUid() != "" {
		uid := u.GetUid()
		if !uidForm().MatchString(uid) {
			uid = "(malformed)"
		}
		fields = append(fields, zap.String("uid", uid))
	}
	if r.KeyID != "" {
		fields = append(fields, zap.String("key_id_hash", keyvault.KeyIDHash(r.KeyID)))
	}
	ce.Write(append(fields, more...)...)
}

// uidForm admits kube-apiserver's UUIDs. The field is the caller's to fill, and
// the log is not the place for whatever that may be.
var uidForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`) })

// isSafe reports whether statusOf passes on the text of err or of its own.
func isSafe(err error) bool {
	st, _ := statusOf(err)
	return st.Code() != codes.Internal
}

// opOf names the operation of a method, "/v2.KeyManagementService/Encrypt".
func opOf(method string) Op {
	return Op(strings.ToLower(method[strings.LastIndexByte(method, '/')+1:]))
}
