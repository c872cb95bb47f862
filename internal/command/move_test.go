package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// A store is exported, imported and verified from the command line; a difference, a damaged archive and
// bad flags have their exit status and name what is wrong.
func TestMoveCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source, target := "sqlite:"+filepath.Join(dir, "source.db"), "sqlite:"+filepath.Join(dir, "target.db")
	store, err := runstore.Open(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	spec := runstore.RunSpec{ID: "run-1", Status: 1}
	spec.Writes.Append("kind", []byte("data"))
	spec.Writes.Put("record", []byte("value"))
	if _, err := store.CreateRun(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	moved := filepath.Join(dir, "archive") + "/"
	_, errs, err := here(t, "", "export", "--store", source, "--to", moved)
	if err != nil || errs != "exported 1 runs, 1 records, 1 events\n" {
		t.Fatalf("export: %q, %v", errs, err)
	}
	if _, _, err := here(t, "", "export", "--store", source, "--to", moved); err == nil || !strings.HasPrefix(err.Error(), "--to: ") || !strings.Contains(err.Error(), "complete archive") {
		t.Errorf("an export into a complete archive: %v", err)
	}
	for range 2 {
		if _, _, err := here(t, "", "import", "--store", target, "--from", moved); err != nil {
			t.Fatalf("import: %v", err)
		}
	}
	for _, args := range [][]string{
		{"verify", "--store", source, "--with", target}, {"verify", "--from", moved, "--with", target}, {"verify", "--from", moved},
	} {
		if out, _, err := here(t, "", args...); err != nil || out != "1 runs, 1 records, 1 events; 0 runs differ\n" {
			t.Errorf("%q: %q, %v", args, out, err)
		}
	}
	stream, _, err := here(t, "", "export", "--store", source, "--to", "-")
	if err != nil {
		t.Fatal(err)
	}
	if out, _, err := here(t, stream, "verify", "--from", "-", "--with", target); err != nil || !strings.HasSuffix(out, " 0 runs differ\n") {
		t.Errorf("verify a stream: %q, %v", out, err)
	}
	batch := runstore.NewBatch("run-1", runstore.Unguarded("test"))
	batch.Put("record", []byte("changed"))
	if _, err := store.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	out, _, err := here(t, "", "verify", "--store", source, "--with", target, "--format", "json")
	if exitStatus(err) != exitRefused || !strings.Contains(out, `{"difference":{"run":"run-1","record":"record","problem":"the version is 2, and 1 in the copy"}}`) ||
		!strings.Contains(out, `{"report":{"runs":1,"records":1,"events":1,"differing":1,"unreported":0}}`) {
		t.Errorf("verify: %q, %v", out, err)
	}
	file := filepath.Join(dir, "one.jsonl")
	if _, _, err := here(t, "", "export", "--store", source, "--to", file); err != nil {
		t.Fatal(err)
	}
	if _, errs, err := here(t, "", "import", "--store", target, "--from", file); err == nil || !strings.Contains(err.Error(), "--raise-epoch") && exitStatus(err) != exitRefused {
		t.Errorf("an import of another state: %q, %v", errs, err)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damaged := strings.Replace(string(whole), `"kind":"kind"`, `"kind":"king"`, 1)
	if err := os.WriteFile(file, []byte(damaged), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"verify", "--from", file}, {"import", "--store", target, "--from", file}} {
		if _, _, err := here(t, "", args...); err == nil || !strings.Contains(err.Error(), file+":4: the sum is ") {
			t.Errorf("%q on a damaged archive: %v", args, err)
		}
	}
	for _, c := range []struct{ args, want string }{
		{"export --store " + source, "--to"},
		{"export --to " + moved, "--store"},
		{"export --store " + source + " --to " + file, "--to: "},
		{"import --store " + target, "--from"},
		{"import --store " + target + " --from " + dir + "/none", "--from: "},
		{"import --store " + target + " --from " + dir, "--from: "},
		{"verify --store " + source, "--with"},
		{"verify --store " + source + " --with nonsense", "--with"},
		{"verify --store " + source + " --from " + moved, "--store and --from"},
		{"verify --from " + moved + " --format xml", "--format"},
		{"verify --from " + moved + " --limit 0", "--limit"},
		{"verify --store " + source + " --with sqlite:" + dir + "/none.db", "--with: "},
	} {
		if _, _, err := here(t, "", strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
	}
}
