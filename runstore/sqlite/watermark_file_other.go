//go:build !linux

package sqlite

import "os"

// fileID identifies a file.
type fileID struct{ info os.FileInfo }

// idOfFile returns the identity of an open file.
func idOfFile(f *os.File) (fileID, error) {
	info, err := f.Stat()
	return fileID{info}, err
}

// idAtPath returns the identity of the file that is at a path now.
func idAtPath(path string) (fileID, error) {
	info, err := os.Stat(path)
	return fileID{info}, err
}

func (id fileID) same(other fileID) bool { return os.SameFile(id.info, other.info) }
