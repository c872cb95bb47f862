package emulators

import (
	"os"

	"golang.org/x/sys/unix"
)

// memoryRoot is a directory in memory for data that need not survive the machine,
// or "" where there is none to be taken. A database is some hundred files: making
// them there takes 10 ms, and on a disk up to thirty times that. It must
// be roomy, and whoever sets TMPDIR has chosen another place.
func memoryRoot() string {
	const shm, room = "/dev/shm", 4 << 30
	var fs unix.Statfs_t
	if os.Getenv("TMPDIR") != "" || unix.Statfs(shm, &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		return ""
	}
	info, err := os.Stat(shm)
	if err != nil || info.Mode().Perm()&0o007 != 0o007 || fs.Bavail*uint64(fs.Bsize) < room {
		return ""
	}
	return shm
}
