package emulators

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// ownerVariable makes this program the owner of a server, for a test that kills
// it; its value says what it does with the server.
const ownerVariable = "EMULATORS_TEST_OWNER"

// hang ends the wait of a test that would otherwise hang. It says nothing about speed.
const hang = 5 * time.Minute

func TestMain(m *testing.M) {
	if role := os.Getenv(ownerVariable); role != "" {
		if err := ownServer(role); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if err := CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, "closing the shared server:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// ownServer starts a server, tells its process and directory, and waits to be
// killed; at the latest it goes when its parent does.
func ownServer(role string) error {
	if role == engineBigtable {
		return ownBigtable()
	}
	if role == engineSpanner {
		return ownSpanner()
	}
	if arguments, ok := strings.CutPrefix(role, spannerClientRole); ok {
		address, database, _ := strings.Cut(arguments, " ")
		return leaveSpannerOpen(address, database)
	}
	s, err := Postgres(context.Background(), nil)
	if err != nil {
		return err
	}
	if role == "frozen" {
		if err := s.Freeze(); err != nil {
			return err
		}
	}
	fmt.Println(s.local.proc.cmd.Process.Pid, s.local.dir.path)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// killedOwner starts an owner in a process of its own, kills it with SIGKILL, and
// returns the server's process and directory.
func killedOwner(t *testing.T, role string) (pid int, dir string) {
	t.Helper()
	owner := exec.CommandContext(t.Context(), os.Args[0])
	owner.Env = append(os.Environ(), ownerVariable+"="+role)
	if _, err := owner.StdinPipe(); err != nil { // left open: its end would be an order to go
		t.Fatal(err)
	}
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n') // whatever came is looked at below
	_ = owner.Process.Kill()
	_ = owner.Wait()
	number, dir, ok := strings.Cut(strings.TrimSpace(line), " ")
	if pid, err = strconv.Atoi(number); err != nil || !ok {
		t.Fatalf("the owner said %q", line)
	}
	return pid, dir
}
