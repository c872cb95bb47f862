package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

// cast are the processes of the demo. All report on one pipe, so that they are heard
// in the order of cause and effect: what a worker said before it called the bank
// comes before what the bank said then.
type cast struct {
	out  *narrator
	pipe *os.File // the end that is written to
	read sync.WaitGroup

	mu      sync.Mutex
	all     []*process // in the order of their start
	endings sync.WaitGroup
}

func newCast(out *narrator) (*cast, error) {
	in, pipe, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c := &cast{out: out, pipe: pipe}
	c.read.Go(func() {
		defer func() { _ = in.Close() }()
		c.listen(in)
	})
	return c, nil
}

// start adds a process. hear, if not nil, is told each line of its standard error.
func (c *cast) start(name string, hear func(string), program string, args ...string) (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock() // its first report finds it in the list
	p, err := start(name, c.pipe, hear, program, args...)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c.all = append(c.all, p)
	c.endings.Go(func() {
		_ = p.cmd.Wait() // what became of it is in its ProcessState
		// On the same pipe, behind all that it said itself.
		_ = send(c.pipe, report{From: name, Kind: ended})
	})
	return p, nil
}

// listen reads reports until the pipe is closed.
func (c *cast) listen(in *os.File) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var r report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			c.out.say("?", lines.Text()) // of a library, perhaps
			continue
		}
		p := c.find(r.From)
		if p == nil {
			continue
		}
		if r.Text != "" {
			c.out.say(r.From, r.Text)
		}
		if r.Kind == ended {
			close(p.reports)
			continue
		}
		p.reports <- r
	}
}

func (c *cast) find(name string) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.all {
		if p.name == name {
			return p
		}
	}
	return nil
}

// close ends all processes, the last one first. Killing is quick, and what mattered
// was stopped gracefully before.
func (c *cast) close() {
	for i := len(c.all) - 1; i >= 0; i-- {
		c.all[i].kill()
	}
	c.endings.Wait()
	_ = c.pipe.Close()
	c.read.Wait()
}
