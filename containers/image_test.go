package containers

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/doctor"
)

// testImage is an image that the tests build from files of this machine.
type testImage struct {
	engine, variable string
	// files returns the image's files and the changes of its configuration.
	files func(ctx context.Context) (files *imageFiles, changes []string, err error)

	sync.Mutex
	name   string
	err    error
	docker client.APIClient
}

var (
	postgresBuilt = &testImage{engine: "postgres", variable: postgresImageVariable, files: serverFiles}
	bigtableBuilt = &testImage{engine: "bigtable", variable: bigtableImageVariable, files: emulatorFiles}
	spannerBuilt  = &testImage{engine: "spanner", variable: spannerImageVariable, files: spannerFiles}
)

// named holds the images from the environment that are tested instead of the built ones.
var named = map[*testImage]string{
	postgresBuilt: os.Getenv(postgresImageVariable),
	bigtableBuilt: os.Getenv(bigtableImageVariable),
	spannerBuilt:  os.Getenv(spannerImageVariable),
}

// needImage builds an image from this machine's own server, once, and makes the starter use it.
// EMULATORS_POSTGRES_IMAGE names another image to test.
func needImage(t *testing.T) *testcontainers.DockerProvider {
	t.Helper()
	return postgresBuilt.need(t)
}

func (i *testImage) need(t *testing.T) *testcontainers.DockerProvider {
	t.Helper()
	provider := docker(t)
	if named[i] != "" {
		return provider
	}
	i.Lock()
	defer i.Unlock()
	if i.name == "" && i.err == nil {
		i.err = i.build(t.Context(), provider)
	}
	emulators.Require(t, i.err)
	t.Setenv(i.variable, i.name)
	return provider
}

func (i *testImage) build(ctx context.Context, provider *testcontainers.DockerProvider) error {
	if err := sweepImages(ctx, provider.Client()); err != nil {
		return fmt.Errorf("sweep images of tests that are gone: %w", err)
	}
	files, changes, err := i.files(ctx)
	if err != nil {
		return err
	}
	owner, err := thisProcess()
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := files.write(&archive); err != nil {
		return err
	}
	i.docker = provider.Client()
	name := fmt.Sprintf("tapestore-test-%s:%d", i.engine, os.Getpid())
	response, err := i.docker.ImageImport(ctx, client.ImageImportSource{Source: &archive, SourceName: "-"}, name,
		client.ImageImportOptions{Changes: append(changes, fmt.Sprintf("LABEL %s=%q", ownerLabel, owner))})
	if err != nil {
		return err
	}
	i.name = name // the image may exist from here on
	_, err = io.Copy(io.Discard, response)
	return errors.Join(err, response.Close())
}

// remove removes the image that build made.
func (i *testImage) remove() error {
	i.Lock()
	defer i.Unlock()
	if i.name == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeBound)
	defer cancel()
	image, err := i.docker.ImageInspect(ctx, i.name)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = i.docker.ImageRemove(ctx, image.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true})
	if err != nil {
		return err
	}
	// Removal by force only untags an image that is in use.
	if _, err := i.docker.ImageInspect(ctx, image.ID); !errdefs.IsNotFound(err) {
		return fmt.Errorf("image %s is still there (%v): a container uses it", image.ID, err)
	}
	return nil
}

// sweepImages removes the images of killed test processes.
func sweepImages(ctx context.Context, docker client.APIClient) error {
	images, err := docker.ImageList(ctx, client.ImageListOptions{Filters: client.Filters{}.Add("label", ownerLabel)})
	if err != nil {
		return err
	}
	for _, image := range images.Items {
		if !isGone(image.Labels[ownerLabel]) {
			continue
		}
		_, err := docker.ImageRemove(ctx, image.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			return err
		}
	}
	return nil
}

// entrypoint handles the variables that the starter sets as the official image's entrypoint does.
// initdb itself needs a shell.
const entrypoint = `#!/bin/sh
set -e
if [ ! -s "$PGDATA/PG_VERSION" ]; then
	initdb -D "$PGDATA" -U postgres $POSTGRES_INITDB_ARGS
	echo "host all all all $POSTGRES_HOST_AUTH_METHOD" >> "$PGDATA/pg_hba.conf"
fi
exec "$@" -c listen_addresses='*'
`

// imageFiles holds the files of an image: contents by path.
type imageFiles struct {
	bin   string
	texts map[string]string // files made by the test
	from  []string          // files of this machine, at the same paths
}

// serverFiles returns the files that this machine's PostgreSQL server needs to run.
func serverFiles(ctx context.Context) (*imageFiles, []string, error) {
	f, err := postgresFiles(ctx)
	if err != nil {
		return nil, nil, err
	}
	return f, []string{
		`ENTRYPOINT ["/entrypoint"]`,
		`USER postgres`,
		`ENV PATH=` + f.bin,
		`VOLUME /var/lib/postgresql/data`, // as in the official image: it must be removed too
	}, nil
}

func postgresFiles(ctx context.Context) (*imageFiles, error) {
	f := &imageFiles{texts: map[string]string{
		"/entrypoint": entrypoint,
		"/etc/passwd": "root:x:0:0::/:/bin/sh\npostgres:x:999:999::/:/bin/sh\n",
		"/etc/group":  "root:x:0:\npostgres:x:999:\n",
	}}
	for _, finding := range doctor.Run(ctx) {
		if finding.Engine == "postgres" && finding.Tier == emulators.TierLocal {
			if !finding.Found {
				return nil, fmt.Errorf("%w: no server to make an image of: %s", emulators.ErrMissing, finding)
			}
			f.bin = finding.Where
		}
	}
	dirs, err := postgresDirs(ctx, f.bin)
	if err != nil {
		return nil, err
	}
	programs := []string{filepath.Join(f.bin, "postgres"), filepath.Join(f.bin, "initdb"), "/bin/sh"}
	// llvmjit.so is left out: it is large, and the server runs without it.
	for _, library := range []string{"plpgsql.so", "dict_snowball.so"} {
		programs = append(programs, filepath.Join(dirs.libraries, library))
	}
	for _, program := range programs {
		libraries, err := dynamicLibraries(ctx, program)
		if err != nil {
			return nil, err
		}
		f.from = append(append(f.from, program), libraries...)
	}
	for _, zone := range []string{"/usr/share/zoneinfo/UTC", "/usr/share/zoneinfo/Etc/UTC"} {
		if _, err := os.Stat(zone); err == nil { // otherwise they are in the share directory
			f.from = append(f.from, zone)
		}
	}
	err = filepath.WalkDir(dirs.share, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "man":
			return fs.SkipDir
		case d.Type().IsRegular() && (!strings.Contains(path, "/extension/") || strings.HasPrefix(d.Name(), "plpgsql")):
			f.from = append(f.from, path)
		}
		return nil
	})
	slices.Sort(f.from)
	f.from = slices.Compact(f.from)
	return f, err
}

// serverDirs holds the directories of a server's files that are not programs.
type serverDirs struct{ share, libraries string }

func postgresDirs(ctx context.Context, bin string) (dirs serverDirs, err error) {
	for _, config := range []string{filepath.Join(bin, "pg_config"), "pg_config"} {
		out, err := exec.CommandContext(ctx, config, "--bindir", "--sharedir", "--pkglibdir").Output()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if err == nil && len(lines) == 3 && lines[0] == bin { // not pg_config of another version
			return serverDirs{share: lines[1], libraries: lines[2]}, nil
		}
	}
	// Debian's server package has no pg_config.
	version := filepath.Base(filepath.Dir(bin))
	dirs = serverDirs{share: filepath.Join("/usr/share/postgresql", version), libraries: filepath.Join(filepath.Dir(bin), "lib")}
	for _, file := range []string{filepath.Join(dirs.share, "postgres.bki"), filepath.Join(dirs.libraries, "plpgsql.so")} {
		if _, err := os.Stat(file); err != nil {
			return dirs, fmt.Errorf("cannot tell which files belong to the server in %s: %w", bin, err)
		}
	}
	return dirs, nil
}

var libraryPath = regexp.MustCompile(`(?m)(/\S+) \(0x[0-9a-f]+\)$`)

// dynamicLibraries lists the files that the loader maps for a program, itself
// included.
func dynamicLibraries(ctx context.Context, program string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "ldd", program).Output()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", program, err)
	}
	var libraries []string
	for _, match := range libraryPath.FindAllStringSubmatch(string(out), -1) {
		libraries = append(libraries, match[1])
	}
	return libraries, nil
}

// write writes the archive of the image.
func (f *imageFiles) write(w io.Writer) error {
	archive := tar.NewWriter(w)
	for _, dir := range []string{"tmp/", "var/run/postgresql/"} { // the latter for the server's socket
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o1777}); err != nil {
			return err
		}
	}
	add := func(path string, content []byte) error {
		header := &tar.Header{Name: strings.TrimPrefix(path, "/"), Mode: 0o755, Size: int64(len(content))}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := archive.Write(content)
		return err
	}
	for path, text := range f.texts {
		if err := add(path, []byte(text)); err != nil {
			return err
		}
	}
	for _, path := range f.from {
		content, err := os.ReadFile(path) // follows links, which the image does not need
		if err != nil {
			return err
		}
		if err := add(path, content); err != nil {
			return err
		}
	}
	return archive.Close()
}
