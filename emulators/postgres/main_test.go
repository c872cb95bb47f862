package postgres

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func TestMain(m *testing.M) {
	code := hosttest.Main(m, ownServer)
	if err := CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, "closing the shared server:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// ownServer starts a server for KilledOwner; role says what it does with it.
func ownServer(role string) error {
	s, err := Start(context.Background(), nil)
	if err != nil {
		return err
	}
	if role == "frozen" {
		if err := s.Freeze(); err != nil {
			return err
		}
	}
	fmt.Println(s.local.proc.Cmd.Process.Pid, s.local.dir.Path)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
