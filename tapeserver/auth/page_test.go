package auth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The first file of docs/security.md works with the first command of that page, which has neither an issuer
// nor authorities for clients. Each further file names in its faults what it needs.
func TestFilesOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, block := range strings.Split(string(page), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		path := filepath.Join(t.TempDir(), "principals.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, path)
	}
	if len(files) != 2 {
		t.Fatalf("%d files in the page, want one for the first command and one with every credential", len(files))
	}
	if _, err := New(Options{File: files[0]}); err != nil {
		t.Errorf("the first file: %v", err)
	}
	_, err = New(Options{File: files[1]})
	if err == nil || !strings.Contains(err.Error(), "principals.yaml:4: ops has certificate: give --tls-client-ca") ||
		!strings.Contains(err.Error(), "principals.yaml:7: worker has oidc_email: give --oidc-issuer") {
		t.Errorf("the second file: %v", err)
	}
	if _, err := New(Options{File: files[1], Issuer: &Issuer{URL: "https://i", Audience: "a"}, Certificates: true}); err != nil {
		t.Errorf("the second file, with an issuer and authorities: %v", err)
	}
}
