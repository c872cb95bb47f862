//go:build !unix

package sqlite

// writableDirectory returns nil: the rights of a directory cannot be asked for without writing.
func writableDirectory(string) error { return nil }
