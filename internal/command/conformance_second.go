package command

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/conformance"
)

// servingLine matches the line in which serve logs its address.
var servingLine = regexp.MustCompile(`msg=serving grpc=(\S+)`)

// secondServer starts this program as a server with the store memory, for the length of a case; the
// default address of probes, which it takes, is in use. It returns the server's gRPC address.
func secondServer(t conformance.T) (address string) {
	t.Helper()
	if taken, err := net.Listen("tcp", defaultProbes); err == nil { // otherwise another program has it
		t.Cleanup(func() { _ = taken.Close() }) // nothing was accepted
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatalf("the path of this program: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), program, "serve", "--store", "memory", "--listen", "127.0.0.1:0", "--log-format", "text", "--log-level", "info")
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "TAPE_HEALTHZ_LISTEN=") || strings.HasPrefix(v, configVariable+"=")
	})
	dieWithParent(cmd)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatalf("start a second server: %v", err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start a second server: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the end of the case's context may have killed it already
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if m := servingLine.FindStringSubmatch(lines.Text()); m != nil {
			go func() { // drain the pipe so that the server does not block; ends with the server
				for lines.Scan() {
				}
			}()
			return m[1]
		}
	}
	t.Fatalf("the second server ended before it served")
	return ""
}
