package bench

import (
	"runtime"
	"strings"
	"testing"
)

func TestDescribeMachine(t *testing.T) {
	m := DescribeMachine()
	if m.Cores < 1 || m.Go != runtime.Version() || !strings.HasPrefix(m.OS, runtime.GOOS+"/"+runtime.GOARCH) || strings.HasSuffix(m.OS, "kernel ") {
		t.Errorf("got %+v", m)
	}
	if m.SyncMS <= 0 {
		t.Errorf("a synced write takes %v ms, want more than 0", m.SyncMS)
	}
	if runtime.GOOS == "linux" && m.Memory < 1<<20 {
		t.Errorf("got %d bytes of memory, want at least a MiB", m.Memory)
	}
	if got := syncTime(t.TempDir() + "/none"); got != 0 {
		t.Errorf("in a directory that does not exist a synced write takes %v ms, want 0", got)
	}
}

func TestMachineTexts(t *testing.T) {
	cpus := "processor\t: 0\nmodel name\t: Example  CPU @ 2.60GHz\nprocessor\t: 1\nmodel name\t: Other\n"
	if got := cpuModel(cpus); got != "Example CPU @ 2.60GHz" {
		t.Errorf("got the model %q", got)
	}
	if got := cpuModel("CPU implementer\t: 0x41\n"); got != "" {
		t.Errorf("got the model %q of a text without one", got)
	}
	for text, want := range map[string]int64{"MemTotal:  2048 kB\nMemFree: 1 kB\n": 2 << 20, "MemTotal: x kB\n": 0, "": 0} {
		if got := memoryTotal(text); got != want {
			t.Errorf("%q: got %d bytes, want %d", text, got, want)
		}
	}
}
