package command

import (
	"path/filepath"
	"strings"
	"testing"
)

// A refusal of the arguments names the one that is missing or the one that is too many.
func TestArgumentsAreNamed(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"inspect run":         "give RUN_ID: tapestore inspect run RUN_ID",
		"inspect journal":     "give RUN_ID: tapestore inspect journal RUN_ID",
		"run purge":           "give RUN_ID: tapestore run purge RUN_ID",
		"lease break":         "give RUN_ID: tapestore lease break RUN_ID",
		"man":                 "give DIR: tapestore man DIR",
		"bench compare a":     "give B.json: tapestore bench compare A.json B.json",
		"inspect run a b":     `tapestore inspect run takes RUN_ID only, and "b" follows`,
		"config check a b":    `tapestore config check takes [PATH] only, and "b" follows`,
		"serve extra":         `tapestore serve takes no arguments, and "extra" is one`,
		"inspect runs extra":  `tapestore inspect runs takes no arguments, and "extra" is one`,
		"inspect bogus":       `unknown command "bogus"`,
		"emulators up oracle": `"oracle" cannot be started`,
		"completion tcsh":     `there is no completion for "tcsh"; the shells are bash, fish, powershell and zsh`,
	} {
		if _, _, err := here(t, "", strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
	if out, _, err := here(t, "", "completion"); err != nil || !strings.Contains(out, "powershell") {
		t.Errorf("completion: %v, want its help, not %s", err, out)
	}
}

// A file may have the name of what holds passwords on other systems.
func TestFilesThatAreCalledPasswd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, file := range []string{filepath.Join(dir, "pwd.db"), filepath.Join(dir, "passwd"), "./passwd", "./pwd.sqlite", "pwd", "passwd", "passwd.db"} {
		message := "there is no file " + file
		for _, given := range [][]string{{file}, {"--store=" + file}} {
			if got := hideArguments(message, given); got != message {
				t.Errorf("%q is shown as %q", message, got)
			}
		}
	}
	for _, secret := range []string{"my-passwd", "password", "./x?password=y", "/a/b@pwd", "passwd=x", "pwd=hunter2", "secret"} {
		if got := hideArguments("it is "+secret, []string{secret}); strings.Contains(got, secret) {
			t.Errorf("%q is shown", got)
		}
	}
}

// A negative number is refused with the least that the setting takes.
func TestLimitsAreNamed(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"drain_s: -1":              "it is a number of seconds of at least 0.001",
		"max_calls_per_second: -2": "it is a whole number of at least 0",
		"retain_pace: -1":          "it is a whole number of at least 0",
		"max_streams: 0":           "it is a whole number of at least 1",
		"max_message_bytes: 1":     "is 1; the least is 4096",
	} {
		if _, stderr, err := here(t, "", "config", "check", configFile(t, "serve: {"+key+"}\n")); err == nil || !strings.Contains(stderr, want) {
			t.Errorf("%s: %v, %s, want %q", key, err, stderr, want)
		}
	}
	for args, want := range map[string]string{
		"--drain=-1s": "above zero", "--max-calls-per-second=-2": "the least is 0", "--retain-pace=-1": "the least is 0", "--max-message-bytes=4095": "the least is 4096",
		"--max-connections-per-address=-1": "the least is 0", "--max-message-bytes=4096": "",
	} {
		_, s := resolved(t, "", nil, args)
		if want == "" && len(s.faults) > 0 || want != "" && (len(s.faults) != 1 || !strings.Contains(s.faults[0].Error(), want)) {
			t.Errorf("%s: %v, want %q", args, s.faults, want)
		}
	}
}
