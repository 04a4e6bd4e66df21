package main

import (
	"os"
	"os/signal"
	"syscall"
)

// watchSignals returns the signals that ask the program to stop. It comes
// before anything else, so that a signal during the start finds a program that
// cleans up. The channel has room for the second signal, which means at once.
func watchSignals() <-chan os.Signal {
	signal.Ignore(syscall.SIGPIPE)
	stop := make(chan os.Signal, 2)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup asks
		signal.Notify(stop, syscall.SIGHUP)
	}
	return stop
}
