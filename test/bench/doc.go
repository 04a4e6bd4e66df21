// Command bench measures azure-kms-plugin against the figures that it promises,
// and with -peer another plugin that takes the same flags, in the same run.
// "make bench" builds and runs it.
//
// The vault is the project's emulator in a process of its own; every plugin has
// a key of its own in it, so that calls can be told apart. What a plugin adds is
// always compared with a direct client: plain net/http over the same proxy, with
// the same TLS, token and keep-alive, and a round of one follows a round of the
// other, so that a busy machine slows both. Absolute figures are this machine's;
// ratios and counts travel.
//
// It ends with status 0 when every figure holds, 1 when one does not, 3 when it
// could not measure and 64 when it was called wrongly.
package main
