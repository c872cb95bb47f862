package sqlite

import (
	"context"
)

// Hold takes the lock that every writer needs, as a process that is stopped in
// the middle of a transaction would, and returns how to let it go.
func Hold(ctx context.Context, path string) (release func() error, err error) {
	c, err := connect(path)
	if err != nil {
		return nil, err
	}
	if err := patiently(ctx, func() error { return c.script(ctx, "BEGIN IMMEDIATE") }); err != nil {
		return nil, err
	}
	return func() error {
		if err := c.script(context.Background(), "ROLLBACK"); err != nil {
			return err
		}
		return c.close()
	}, nil
}

// CheckVersion is checkVersion.
func CheckVersion(v string) error { return checkVersion(v) }
