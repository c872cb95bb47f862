package sqlite_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// disk is a file system that fails on demand. It is a VFS shim: SQLite's own VFS with the methods
// that read, write, sync and truncate replaced. The engine's own calls fail, so the engine and the
// adapter see what a failing disk would show them.
//
// SQLite calls its VFS by C function pointers and passes files as C memory. Both are
// uintptrs in the Go translation, and so this file converts pointers by hand. Nothing of
// it is in the adapter.
type disk struct {
	name string

	mu   sync.Mutex
	fail func(call string, file string) fault
	met  int // faults since fail was set
}

// fault is the failure of a call. The zero fault is none.
type fault struct {
	code int32 // SQLite's result code
	// torn is how many bytes of a write reach the file before it fails; wholly lets all
	// of them.
	torn int32
}

const wholly = 1 << 30

// The files of a database, as a disk names them.
const (
	mainFile = ""
	walFile  = "-wal"
)

// nth returns a rule that meets the nth call of one name on one file with a fault.
func nth(n int, call, file string, f fault) func(string, string) fault {
	seen := 0
	return func(gotCall, gotFile string) fault {
		if gotCall == call && gotFile == file {
			if seen++; seen == n {
				return f
			}
		}
		return fault{}
	}
}

// on returns a rule that meets all calls of one name on one file with a fault.
func on(call, file string, f fault) func(string, string) fault {
	return func(gotCall, gotFile string) fault {
		if gotCall == call && gotFile == file {
			return f
		}
		return fault{}
	}
}

// set replaces the rule; nil ends all faults. It returns how many faults the previous rule caused.
func (d *disk) set(fail func(call, file string) fault) (met int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	met, d.met, d.fail = d.met, 0, fail
	return met
}

func (d *disk) meet(call, file string) fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail == nil {
		return fault{}
	}
	f := d.fail(call, file)
	if f.code != 0 {
		d.met++
	}
	return f
}

// disks finds the Go side of what SQLite passes by address.
var disks struct {
	sync.Mutex
	byVFS   map[uintptr]*disk
	files   map[uintptr]diskFile
	methods map[uintptr]uintptr // the replaced io_methods by SQLite's
}

// diskFile is an open file of a disk.
type diskFile struct {
	*disk
	suffix   string
	original uintptr // *sqlite3.Tsqlite3_io_methods
}

// newDisk registers a disk for one test. It stays registered, as its memory does: a store
// that a failed test has left open may still call it.
func newDisk(t *testing.T) *disk {
	t.Helper()
	d, err := registerDisk("disk-of-" + strings.Map(func(r rune) rune {
		if r < 'a' || r > 'z' {
			return '-'
		}
		return r
	}, strings.ToLower(t.Name())))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func registerDisk(diskName string) (*disk, error) {
	tls := libc.NewTLS()
	defer tls.Close()
	d := &disk{name: diskName}
	name, err := libc.CString(d.name)
	if err != nil {
		return nil, err
	}
	vfs := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_vfs{})))
	shim := at[sqlite3.Tsqlite3_vfs](vfs)
	*shim = *at[sqlite3.Tsqlite3_vfs](sqlite3.Xsqlite3_vfs_find(tls, 0))
	shim.FpNext, shim.FzName, shim.FxOpen = 0, name, address(diskOpen)
	disks.Lock()
	defer disks.Unlock()
	if disks.byVFS == nil {
		disks.byVFS, disks.files, disks.methods = map[uintptr]*disk{}, map[uintptr]diskFile{}, map[uintptr]uintptr{}
	}
	disks.byVFS[vfs] = d
	if rc := sqlite3.Xsqlite3_vfs_register(tls, vfs, 0); rc != sqlite3.SQLITE_OK {
		return nil, fmt.Errorf("register a VFS: code %d", rc)
	}
	return d, nil
}

// at returns what an address in C memory holds.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

// address returns a function as C code refers to it. It must be declared at package
// level, since nothing keeps a closure alive.
func address(f any) uintptr { return (*[2]uintptr)(unsafe.Pointer(&f))[1] }

// function returns the function at an address that C code refers to it by.
func function[F any](address uintptr) F { return *(*F)(unsafe.Pointer(&struct{ uintptr }{address})) }

func fileAt(file uintptr) (f diskFile, original *sqlite3.Tsqlite3_io_methods) {
	disks.Lock()
	defer disks.Unlock()
	f = disks.files[file]
	return f, at[sqlite3.Tsqlite3_io_methods](f.original)
}

func diskOpen(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32 {
	original := sqlite3.Xsqlite3_vfs_find(tls, 0)
	open := function[func(*libc.TLS, uintptr, uintptr, uintptr, int32, uintptr) int32](at[sqlite3.Tsqlite3_vfs](original).FxOpen)
	rc := open(tls, original, name, file, flags, outFlags)
	methods := at[sqlite3.Tsqlite3_file](file).FpMethods
	if rc != sqlite3.SQLITE_OK || methods == 0 {
		return rc
	}
	suffix := mainFile
	if base := filepath.Base(libc.GoString(name)); strings.Contains(base, "-") {
		suffix = base[strings.LastIndex(base, "-"):]
	}
	disks.Lock()
	defer disks.Unlock()
	replaced, ok := disks.methods[methods]
	if !ok {
		replaced = libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_io_methods{})))
		m := at[sqlite3.Tsqlite3_io_methods](replaced)
		*m = *at[sqlite3.Tsqlite3_io_methods](methods)
		m.FxClose, m.FxRead, m.FxWrite = address(diskClose), address(diskRead), address(diskWrite)
		m.FxSync, m.FxTruncate = address(diskSync), address(diskTruncate)
		m.FiVersion = min(m.FiVersion, 2) // without xFetch: what is mapped is not read by xRead
		disks.methods[methods] = replaced
	}
	disks.files[file] = diskFile{disks.byVFS[vfs], suffix, methods}
	at[sqlite3.Tsqlite3_file](file).FpMethods = replaced
	return rc
}

func diskClose(tls *libc.TLS, file uintptr) int32 {
	_, m := fileAt(file)
	disks.Lock()
	delete(disks.files, file)
	disks.Unlock()
	return function[func(*libc.TLS, uintptr) int32](m.FxClose)(tls, file)
}

func diskRead(tls *libc.TLS, file, buffer uintptr, n int32, offset int64) int32 {
	f, m := fileAt(file)
	if fault := f.meet("read", f.suffix); fault.code != 0 {
		return fault.code
	}
	return function[func(*libc.TLS, uintptr, uintptr, int32, int64) int32](m.FxRead)(tls, file, buffer, n, offset)
}

func diskWrite(tls *libc.TLS, file, buffer uintptr, n int32, offset int64) int32 {
	f, m := fileAt(file)
	write := function[func(*libc.TLS, uintptr, uintptr, int32, int64) int32](m.FxWrite)
	fault := f.meet("write", f.suffix)
	if fault.code == 0 {
		return write(tls, file, buffer, n, offset)
	}
	if part := min(n, fault.torn); part > 0 {
		if rc := write(tls, file, buffer, part, offset); rc != sqlite3.SQLITE_OK {
			return rc
		}
	}
	return fault.code
}

func diskSync(tls *libc.TLS, file uintptr, flags int32) int32 {
	f, m := fileAt(file)
	if fault := f.meet("sync", f.suffix); fault.code != 0 {
		return fault.code
	}
	return function[func(*libc.TLS, uintptr, int32) int32](m.FxSync)(tls, file, flags)
}

func diskTruncate(tls *libc.TLS, file uintptr, size int64) int32 {
	f, m := fileAt(file)
	if fault := f.meet("truncate", f.suffix); fault.code != 0 {
		return fault.code
	}
	return function[func(*libc.TLS, uintptr, int64) int32](m.FxTruncate)(tls, file, size)
}
