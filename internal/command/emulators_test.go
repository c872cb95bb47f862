package command

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/emulators/doctor"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
)

func TestDoctorCommand(t *testing.T) {
	t.Parallel()
	out, errs, status := run(t, "emulators", "doctor")
	if status != 0 || errs != "" {
		t.Errorf("got status %d: %s", status, errs)
	}
	lines := strings.Split(out, "\n")
	if !strings.HasPrefix(lines[0], "ENGINE ") {
		t.Errorf("got the header %q", lines[0])
	}
	var differences []string
	for _, d := range bigtableemulator.KnownGaps() {
		differences = append(differences, d.Emulator)
	}
	for _, d := range spanneremulator.KnownGaps() {
		differences = append(differences, d.Emulator)
	}
	for _, d := range differences {
		if want := strings.Join(strings.Fields(d), " "); !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("the doctor does not tell: %s", want)
		}
	}
	findings := doctor.Run(t.Context())
	for i, f := range findings {
		found := f.Version
		if !f.Found {
			found = "no"
		}
		line := regexp.MustCompile("^" + f.Engine + " +" + f.Tier + " +" + regexp.QuoteMeta(found) + " +")
		if len(lines) < i+2 || !line.MatchString(lines[i+1]) || !f.Found && !strings.Contains(lines[i+1], f.Install) {
			t.Errorf("line %d is not that of %s:\n%s", i+1, f, out)
		}
	}
}

// startUp runs emulators up until it is ready, and returns the URLs that it told,
// and how to stop it.
func startUp(t *testing.T, env []string, args ...string) (urls []string, stop func(os.Signal)) {
	t.Helper()
	urls, _, stop = startUpWith(t, env, args...)
	return urls, stop
}

// startUpWith also returns the commands that were told.
func startUpWith(t *testing.T, env []string, args ...string) (urls, commands []string, stop func(os.Signal)) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, append([]string{"emulators", "up"}, args...)...)
	cmd.Env, cmd.Stderr = append(append(os.Environ(), "TAPESTORE_TEST_RUN=1"), env...), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	bound := time.AfterFunc(hang, func() { _ = cmd.Process.Kill() })
	stopped := false
	t.Cleanup(func() {
		bound.Stop()
		if !stopped {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	address := regexp.MustCompile(`^  ((?:(?:postgres|alloydb)://postgres@127\.0\.0\.1:\d+/\w+)|(?:bigtable|spanner)://tapestore/local/tapestore\?emulator=127\.0\.0\.1:\d+)$`)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if m := address.FindStringSubmatch(lines.Text()); m != nil {
			urls = append(urls, m[1])
		} else if command, ok := strings.CutPrefix(lines.Text(), "  "); ok {
			commands = append(commands, command)
		}
		if strings.HasPrefix(lines.Text(), "Ctrl-C") {
			return urls, commands, func(sig os.Signal) {
				t.Helper()
				stopped = true
				if err := cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				if err := cmd.Wait(); err != nil {
					t.Errorf("stopped by %v: %v, want exit status 0", sig, err)
				}
			}
		}
	}
	t.Fatal("it ended before it was ready")
	return nil, nil, nil
}

// works runs commands that up told, as a person copies them into a shell. A server gets
// free ports and is stopped as soon as it serves.
func works(t *testing.T, commands []string) {
	t.Helper()
	for _, command := range commands {
		serves := strings.Contains(command, " serve ")
		if serves {
			command += " --listen 127.0.0.1:0 --healthz-listen ''"
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "exec "+command)
		cmd.Env = append(os.Environ(), "TAPESTORE_TEST_RUN=1")
		errs, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var said []string
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			said = append(said, lines.Text())
			if serves && strings.Contains(lines.Text(), "serving") {
				_ = cmd.Process.Signal(syscall.SIGTERM)
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v: %s", command, err, strings.Join(said, "\n"))
		}
	}
}

// requireLocal ends a test that could not start a server, or must not.
func requireLocal(t *testing.T) {
	t.Helper()
	if e := sharedServer(t).Engine(); e.Tier == emulators.TierService {
		t.Skipf("not applicable: up starts no server while the environment names one, %s", e)
	}
}

func TestUpStartsEngines(t *testing.T) {
	t.Parallel()
	requireLocal(t)
	urls, commands, stop := startUpWith(t, ownTemp(t), "all")
	if len(commands) != 2*len(urls) {
		t.Errorf("got the commands %q, want two for each of %q", commands, urls)
	}
	works(t, commands)
	if len(urls) == 3 {
		defer emulators.Require(t, fmt.Errorf("%w: spanner was left out", emulators.ErrMissing))
	} else if len(urls) != 4 || !strings.HasPrefix(urls[3], "spanner://") {
		t.Fatalf("got the URLs %v, want one of spanner behind three", urls)
	}
	if !strings.HasPrefix(urls[0], "postgres://") || !strings.HasPrefix(urls[1], "alloydb://") || !strings.HasPrefix(urls[2], "bigtable://") {
		t.Fatalf("got the URLs %v, want them to begin with one each of postgres, alloydb and bigtable", urls)
	}
	for _, url := range urls {
		store, err := runstore.Open(t.Context(), url)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "run-1"}); err != nil { // in each it is the first
			t.Errorf("%s: %v", url, err)
		}
		if err := store.Close(); err != nil {
			t.Errorf("%s: close: %v", url, err)
		}
	}
	stop(syscall.SIGINT)
	if _, errs, status := run(t, "inspect", "runs", "--store", urls[0]+"?retry_timeout=10ms"); status == 0 || !strings.Contains(errs, "refused") {
		t.Errorf("after the end: status %d, %s; want a connection refused", status, errs)
	}
}

// Bigtable needs nothing that others need, and other processes can use it.
func TestUpStartsBigtableAlone(t *testing.T) {
	t.Parallel()
	urls, stop := startUp(t, append(ownTemp(t), "PATH="), "bigtable")
	if len(urls) != 1 {
		t.Fatalf("got the URLs %v, want one", urls)
	}
	store, err := runstore.Open(t.Context(), urls[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "run-1"}); err != nil {
		t.Error(err)
	}
	if err := store.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if out, errs, status := run(t, "inspect", "runs", "--store", urls[0]); status != 0 || !strings.Contains(out, "run-1") {
		t.Errorf("inspect: status %d, %s%s", status, out, errs)
	}
	stop(syscall.SIGTERM)
	if _, errs, status := run(t, "emulators", "up", "bigtable", "--dir", "somewhere"); status != 1 || !strings.Contains(errs, "keeps none") {
		t.Errorf("with a directory: status %d, %q", status, errs)
	}
}

func TestUpKeepsItsDirectory(t *testing.T) {
	t.Parallel()
	requireLocal(t)
	dir, err := os.MkdirTemp("", "tapestore-up-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // for the server's user
		t.Fatal(err)
	}
	for round := range 2 {
		urls, stop := startUp(t, nil, "postgres", "--dir", dir)
		if len(urls) != 1 {
			t.Fatalf("got the URLs %v, want one", urls)
		}
		store, err := runstore.Open(t.Context(), urls[0])
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			_, err = store.CreateRun(t.Context(), runstore.RunSpec{ID: "run-1"})
		} else {
			_, err = store.GetRun(t.Context(), "run-1")
		}
		if err != nil {
			t.Errorf("start %d: %v", round+1, err)
		}
		if err := store.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		stop(syscall.SIGTERM)
	}
}
