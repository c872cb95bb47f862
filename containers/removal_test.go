package containers

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// doomedVariable makes the test binary a program that starts a container and is then killed.
const doomedVariable = "CONTAINERS_TEST_DOOMED"

func runDoomed() {
	if os.Getenv(doomedVariable) == "" {
		return
	}
	p, err := startPostgres(context.Background())
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("started", p.container.GetContainerID(), theReaper.cmd.Process.Pid)
	select {}
}

// doomed starts a process that starts a container. The process is killed at the end of the test at
// the latest.
func doomed(t *testing.T, provider *testcontainers.DockerProvider) (process *exec.Cmd, id string, reaper *os.Process) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), doomedVariable+"=yes")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be dead already
		_ = cmd.Wait()
		if id != "" {
			gone(t, provider, id) // the image is removed next
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	var pid int
	if n, _ := fmt.Sscanf(line, "started %s %d", &id, &pid); n != 2 {
		t.Fatalf("it said %q (%v)", line, err)
	}
	if reaper, err = os.FindProcess(pid); err != nil {
		t.Fatal(err)
	}
	return cmd, id, reaper
}

// hang is how long a test waits for a removal: 5 minutes, more than a slow machine needs.
const hang = 10 * removeBound

// gone waits until a container is gone, and returns how long that took.
func gone(t *testing.T, provider *testcontainers.DockerProvider, id string) time.Duration {
	t.Helper()
	for began := time.Now(); ; <-time.After(20 * time.Millisecond) {
		if !exists(t, provider, id) {
			return time.Since(began)
		}
		if time.Since(began) > hang {
			t.Fatalf("container %.12s is still there", id)
		}
	}
}

func TestCloseRemoves(t *testing.T) {
	provider := needImage(t)
	p := start(t)
	id := p.container.GetContainerID()
	volumes := volumesOf(t, provider, id)
	if len(volumes) == 0 {
		t.Error("no volume to see removed: the image has none")
	}
	began := time.Now()
	for range 2 { // the second Close does nothing
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("removed in %v", time.Since(began))
	if exists(t, provider, id) {
		t.Error("the container is there after Close")
	}
	for _, volume := range volumes {
		if _, err := provider.Client().VolumeInspect(t.Context(), volume, client.VolumeInspectOptions{}); err == nil {
			t.Errorf("volume %s is there after Close", volume)
		}
	}
}

func volumesOf(t *testing.T, provider *testcontainers.DockerProvider, id string) (names []string) {
	t.Helper()
	inspect, err := provider.Client().ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, mount := range inspect.Container.Mounts {
		if mount.Name != "" {
			names = append(names, mount.Name)
		}
	}
	for port, bindings := range inspect.Container.NetworkSettings.Ports {
		for _, b := range bindings {
			if b.HostIP.String() != loopback {
				t.Errorf("port %v is published at %v, want %s only", port, b.HostIP, loopback)
			}
		}
	}
	return names
}

// TestStartThatFails checks that a failed start reports the reason and leaves no container.
func TestStartThatFails(t *testing.T) {
	provider := needImage(t)
	before := ours(t, provider)
	old := postgresSettings
	t.Cleanup(func() { postgresSettings = old })
	postgresSettings = []string{"no_such_setting=1"}
	p, err := startPostgres(t.Context())
	if err == nil {
		_ = p.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("got %v, want the server's own words", err)
	}
	if after := ours(t, provider); after != before {
		t.Errorf("%d containers of ours, want %d as before", after, before)
	}
}

func TestStartThatIsCancelled(t *testing.T) {
	provider := needImage(t)
	before := ours(t, provider)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // in the middle of the start
	defer cancel()
	if p, err := startPostgres(ctx); err == nil {
		t.Log("it was faster than its bound")
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	for began := time.Now(); ours(t, provider) != before; <-time.After(20 * time.Millisecond) {
		if time.Since(began) > hang {
			t.Fatal("a start that was given up left a container")
		}
	}
}

func TestImageThatIsNowhere(t *testing.T) {
	docker(t)
	t.Setenv(postgresImageVariable, "127.0.0.1:1/no/such:image")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	p, err := startPostgres(ctx)
	if err == nil {
		_ = p.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "no/such:image") || !strings.Contains(err.Error(), postgresImageVariable) || ctx.Err() != nil {
		t.Errorf("got %v, want the image and how to choose another, before the bound", err)
	}
}

// ours counts the containers of this process.
func ours(t *testing.T, provider *testcontainers.DockerProvider) int {
	t.Helper()
	owner, err := thisProcess()
	if err != nil {
		t.Fatal(err)
	}
	containers, err := owned(t.Context(), provider.Client(), owner)
	if err != nil {
		t.Fatal(err)
	}
	return len(containers)
}

func TestKilledProcess(t *testing.T) {
	provider := needImage(t)
	process, id, _ := doomed(t, provider)
	if !exists(t, provider, id) {
		t.Fatal("no container to see removed")
	}
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	t.Logf("the reaper removed the container in %v", gone(t, provider, id))
}

// TestKilledProcessAndReaper kills the owner and its reaper, as the end of a whole process tree
// does.
func TestKilledProcessAndReaper(t *testing.T) {
	provider := needImage(t)
	process, id, reaper := doomed(t, provider)
	for _, p := range []*os.Process{reaper, process.Process} {
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	_ = process.Wait() // killed
	if !exists(t, provider, id) {
		t.Fatal("the container is gone: there was nothing to sweep")
	}
	start(t)
	if exists(t, provider, id) {
		t.Error("the next start left the container of a dead process")
	}
}

func TestSweepSparesTheLiving(t *testing.T) {
	provider := needImage(t)
	_, id, _ := doomed(t, provider) // not killed yet
	mine := start(t)
	if err := sweep(t.Context(), provider.Client()); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{id, mine.container.GetContainerID()} {
		if !exists(t, provider, id) {
			t.Errorf("the sweep took container %.12s, whose process lives", id)
		}
	}
	c, err := pgx.Connect(t.Context(), mine.URL())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOwners(t *testing.T) {
	me, err := thisProcess()
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(me, " ")
	for owner, want := range map[string]bool{
		me:                                       false,
		"elsewhere " + parts[1] + " " + parts[2]: false,
		"elsewhere 999999999 1":                  false,
		parts[0] + " 999999999 " + parts[2]:      true,
		parts[0] + " " + parts[1] + " not-then":  true, // the id was reused
		parts[0] + " not-a-number " + parts[2]:   false,
		"":                                       false,
		me + " more":                             false,
	} {
		if got := isGone(owner); got != want {
			t.Errorf("%q is gone: %t, want %t", owner, got, want)
		}
	}
}
