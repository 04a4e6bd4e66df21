package main

import (
	"io"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Lines with the same level and message that are let through in a second, and
// then one in how many. A caller that repeats a failing call does so some 80
// times a second.
const (
	sampleFirst = 10
	sampleThen  = 100
)

// loggers are the two streams of the program's log, which share their output.
type loggers struct {
	// main is sampled.
	main *zap.Logger
	// rotation is not: each change of the key ID is on record.
	rotation *zap.Logger
	dropped  *atomic.Uint64
}

// newLoggers writes to w, as JSON or for a terminal. verbosity is klog's: from
// 4 on, debug lines are written.
func newLoggers(w io.Writer, json bool, verbosity int) loggers {
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	enc.EncodeDuration = zapcore.StringDurationEncoder
	enc.TimeKey = "time"
	encoder := zapcore.NewJSONEncoder(enc)
	if !json {
		enc.EncodeLevel = zapcore.CapitalLevelEncoder
		enc.ConsoleSeparator = " "
		encoder = zapcore.NewConsoleEncoder(enc)
	}
	level := zapcore.InfoLevel
	if verbosity >= 4 {
		level = zapcore.DebugLevel
	}
	core := zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level)
	dropped := new(atomic.Uint64)
	sampled := zapcore.NewSamplerWithOptions(core, time.Second, sampleFirst, sampleThen,
		zapcore.SamplerHook(func(_ zapcore.Entry, d zapcore.SamplingDecision) {
			if d&zapcore.LogDropped != 0 {
				dropped.Add(1)
			}
		}))
	return loggers{main: zap.New(sampled), rotation: zap.New(core), dropped: dropped}
}
