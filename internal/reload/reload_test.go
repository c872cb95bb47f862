package reload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// pair makes a value of two files whose contents must be equal.
func pair(files [][]byte) (string, error) {
	if string(files[0]) != string(files[1]) {
		return "", fmt.Errorf("%s is not %s", files[0], files[1])
	}
	return string(files[0]), nil
}

func TestValueFollowsItsFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "1")
	if _, err := Load([]string{a, b}, pair); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("Load without a file = %v", err)
	}
	write(t, b, "1")
	v, err := Load([]string{a, b}, pair)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, wantChanged bool, wantErr, want string) {
		t.Helper()
		changed, err := v.Check()
		if changed != wantChanged || (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s: Check = %v, %v, want %v, %q", what, changed, err, wantChanged, wantErr)
		}
		if v.Get() != want {
			t.Errorf("%s: value %q, want %q", what, v.Get(), want)
		}
	}
	check("nothing changed", false, "", "1")
	write(t, a, "2")
	check("half of a change", false, "2 is not 1", "1")
	check("still half of it", false, "", "1") // the error was returned before
	write(t, b, "2")
	check("the other half", true, "", "2")
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	check("a file is gone", false, "no such file", "2")
	write(t, b, "2")
	check("and is back", false, "", "2")
	write(t, a, strings.Repeat("x", MaxBytes+1))
	check("a large file", false, "4 MiB", "2")
}

func TestWatchLogsEachChangeAndEachErrorOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "1")
	write(t, b, "1")
	v, err := Load([]string{a, b}, pair)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			v.Watch(ctx, time.Second, "pair", slog.New(slog.NewTextHandler(&out, nil)))
		}()
		write(t, a, "2")
		time.Sleep(4500 * time.Millisecond) // between two looks, so that none sees half a write
		write(t, b, "2")
		time.Sleep(4500 * time.Millisecond) // between two looks, so that none sees half a write
		cancel()
		<-done
		text := out.String()
		if strings.Count(text, "cannot read the changed pair") != 1 || strings.Count(text, "read the changed pair\" files") != 1 || v.Get() != "2" {
			t.Errorf("value %q, log:\n%s", v.Get(), text)
		}
	})
}
