package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/internal/wrap"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/claim"
	"github.com/tapestore/tapestore/lease/election"
	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/lease/takeover"
	"github.com/tapestore/tapestore/matcher"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
	"github.com/tapestore/tapestore/runstore/bigtable"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/runstore/postgres"
	"github.com/tapestore/tapestore/runstore/spanner"
	"github.com/tapestore/tapestore/runstore/sqlite"
	"github.com/tapestore/tapestore/tape"
)

// vectorList is the output of --vectors. Its JSON form is stable: fields are added, and never change
// their meaning.
type vectorList struct {
	Engines []namedVector `json:"engines"`
	Kinds   []namedVector `json:"kinds"`
	Targets []string      `json:"mutation_targets"`
}

type namedVector struct {
	Name string `json:"name"`
	runstore.LeaseVector
}

// vectors returns the vectors of all engines and kinds of lease, and the mutation targets.
func vectors() (vectorList, error) {
	targets, err := conformance.MutationTargets()
	return vectorList{
		Engines: []namedVector{
			{"memory", memory.LeaseVector()}, {"sqlite", sqlite.LeaseVector()}, {"postgres", postgres.LeaseVector()},
			{"alloydb", alloydb.LeaseVector()}, {"bigtable", bigtable.LeaseVector()}, {"spanner", spanner.LeaseVector()},
		},
		Kinds: []namedVector{
			{"lease.Keeper", lease.LeaseVector()}, {"takeover.Worker", takeover.LeaseVector()},
			{"election.Coordinator", election.LeaseVector()}, {"group.Group", group.LeaseVector()},
			{"claim.Queue, claim.Capacity", claim.LeaseVector()},
			{"Tape: driver of a run", tape.RunLeaseVector()}, {"Tape: effect", tape.EffectVector()},
			{"Tape: outbox", tape.OutboxVector()}, {"Tape: obligation", tape.ObligationVector()},
			{"Tape: task", tape.TaskVector()}, {"Tape: shard of a reaction", matcher.LeaseVector()},
		},
		Targets: targets,
	}, err
}

// showVectors prints the vectors as text or JSON.
func showVectors(cmd *cobra.Command, given suiteFlags) error {
	given.fence = "" // has a default
	if given != (suiteFlags{vectors: true, format: given.format}) || given.format == "html" {
		return errors.New("--vectors goes with --format text or json, and no other flag")
	}
	all, err := vectors()
	if err != nil {
		return err
	}
	if given.format == "json" {
		out := json.NewEncoder(cmd.OutOrStdout())
		out.SetIndent("", "  ")
		return out.Encode(all)
	}
	var b strings.Builder
	for _, part := range []struct {
		title   string
		vectors []namedVector
	}{{"Engines", all.Engines}, {"Kinds of lease", all.Kinds}} {
		fmt.Fprintf(&b, "%s\n", part.title)
		for _, v := range part.vectors {
			fmt.Fprintf(&b, "\n  %s\n", v.Name)
			for _, field := range [][2]string{
				{"substrate", v.Substrate}, {"payload", v.Payload}, {"enforcement", v.Enforcement}, {"token", v.Token}, {"handoff", v.Handoff},
			} {
				fmt.Fprintf(&b, "    %-12s %s\n", field[0], field[1])
			}
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "Mutation targets: %d, each of which refuses a stale token\n\n", len(all.Targets))
	b.WriteString(wrap.Text(strings.Join(all.Targets, ", "), 96, "  ") + "\n")
	_, err = fmt.Fprint(cmd.OutOrStdout(), b.String())
	return err
}
