package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

const sound = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestOne"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"=== RUN   TestOne\n"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"    one.go:7: reduced: 1 of 3 rounds\n"}
{"Action":"pass","Package":"m/a","Test":"TestOne","Elapsed":0.1}
{"Action":"run","Package":"m/a","Test":"TestTwo"}
{"Action":"output","Package":"m/a","Test":"TestTwo","Output":"=== RUN   TestTwo\n"}
{"Action":"output","Package":"m/a","Test":"TestTwo","Output":"    two.go:9: left to make test-full: every transport\n"}
{"Action":"output","Package":"m/a","Test":"TestTwo","Output":"--- SKIP: TestTwo (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestTwo","Elapsed":0}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.2s\n"}
{"Action":"pass","Package":"m/a","Elapsed":2.5}
`

const failing = `{"Action":"output","Package":"m/b","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"    bad.go:3: got 2, want 1\n"}
{"Action":"fail","Package":"m/b","Test":"TestBad","Elapsed":0.1}
{"Action":"fail","Package":"m/b","Elapsed":0.3}
`

const killed = `{"Action":"run","Package":"m/d","Test":"TestHangs"}
{"Action":"output","Package":"m/d","Test":"TestHangs","Output":"=== RUN   TestHangs\n"}
{"Action":"output","Package":"m/d","Test":"TestHangs","Output":"SIGQUIT: quit\n"}
{"Action":"output","Package":"m/d","Output":"FAIL\tm/d\t9s\n"}
{"Action":"fail","Package":"m/d","Elapsed":9}
`

const broken = `{"ImportPath":"m/c","Action":"build-output","Output":"c.go:1:1: syntax error\n"}
{"ImportPath":"m/c","Action":"build-fail"}
{"Action":"fail","Package":"m/c","Elapsed":0,"FailedBuild":"m/c"}
`

func TestReport(t *testing.T) {
	for _, test := range []struct {
		name, events string
		passed       bool
		want         []string
	}{
		{"sound", sound, true, []string{
			"ok    m/a", "2 tests, 1 skipped", "    1  left to make test-full: every transport",
			"some rounds of cases in m/a (1 reductions", "1 packages in 3 s",
		}},
		{"failing", sound + failing, false, []string{"bad.go:3: got 2, want 1", "FAILED: m/b TestBad", "FAIL  m/b"}},
		{"killed", sound + killed, false, []string{"TestHangs did not end:", "SIGQUIT: quit", "FAILED: m/d"}},
		{"broken", broken, false, []string{"c.go:1:1: syntax error", "FAILED: m/c"}},
		{"nothing", "", false, nil},
		{"no test ran", "panic: no JSON\n", false, []string{"panic: no JSON"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			r := newReport(&out)
			r.measured = t.TempDir() + "/cpu"
			r.read(strings.NewReader(test.events), "")
			if passed := r.print(3*time.Second, false, false, true); passed != test.passed {
				t.Errorf("passed: got %t, want %t", passed, test.passed)
			}
			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the report lacks %q:\n%s", want, out.String())
				}
			}
		})
	}
}

func TestCPUTime(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out)
	r.measured = t.TempDir() + "/cpu"
	r.packages = []packageResult{{path: "github.com/tapestore/tapestore/lease"}, {path: "github.com/tapestore/tapestore/tape"}}
	for _, line := range []string{"/somewhere/lease\t1500\n", "/somewhere/tape\t20\n", "/somewhere/tape\t30\n"} {
		if err := record(r.measured, line); err != nil {
			t.Fatal(err)
		}
	}
	cpu := r.cpu()
	if got, want := cpu["github.com/tapestore/tapestore/lease"], 1500*time.Millisecond; got != want {
		t.Errorf("lease took %v, want %v", got, want)
	}
	if got, want := cpu["github.com/tapestore/tapestore/tape"], 50*time.Millisecond; got != want {
		t.Errorf("tape took %v, want %v", got, want)
	}
}
