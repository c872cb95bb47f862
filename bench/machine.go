package bench

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// syncs is how often DescribeMachine writes to the disk: enough for a median, and under a second
// on a disk that takes 40 ms.
const syncs = 21

// DescribeMachine describes the machine of this process. Facts that the operating system does not
// provide in Linux's form stay empty or 0.
func DescribeMachine() Machine {
	return Machine{
		CPU:    cpuModel(read("/proc/cpuinfo")),
		Cores:  runtime.GOMAXPROCS(0), // which follows the limits of a container
		Memory: memoryTotal(read("/proc/meminfo")),
		OS:     strings.TrimSuffix(runtime.GOOS+"/"+runtime.GOARCH+", kernel "+strings.TrimSpace(read("/proc/sys/kernel/osrelease")), ", kernel "),
		Go:     runtime.Version(),
		SyncMS: syncTime(os.TempDir()),
	}
}

// read returns the text of a file, or "" if it cannot be read.
func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}

// cpuModel returns the model named in the text of /proc/cpuinfo; on ARM there is none.
func cpuModel(info string) string {
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(name) == "model name" {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return ""
}

// memoryTotal returns the memory named in the text of /proc/meminfo, in bytes.
func memoryTotal(info string) int64 {
	for line := range strings.Lines(info) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "MemTotal:" && fields[2] == "kB" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// syncTime returns the median time of writing 4 KiB and syncing them in a directory, in
// milliseconds, or 0 if that fails.
func syncTime(dir string) float64 {
	file, err := os.CreateTemp(dir, "tapestore-sync-")
	if err != nil {
		return 0
	}
	defer os.Remove(file.Name())
	defer file.Close()
	page := make([]byte, 4<<10)
	var took []float64
	for range syncs {
		began := time.Now()
		if _, err := file.Write(page); err != nil {
			return 0
		}
		if err := file.Sync(); err != nil {
			return 0
		}
		took = append(took, float64(time.Since(began))/float64(time.Millisecond))
	}
	slices.Sort(took)
	return took[len(took)/2]
}
