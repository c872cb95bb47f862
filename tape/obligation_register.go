package tape

import (
	"context"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// Compensation is the input of RegisterCompensation.
type Compensation struct {
	Run runstore.RunID
	// EffectKey is the idempotency key of the effect to compensate, which need not exist.
	EffectKey string
	// Kind names the compensator. Compensator optionally references its code.
	Kind, Compensator string
	Payload           string
	// MaxAttempts is the number of attempts; 0 or less means 5.
	MaxAttempts int32
	Fence       runstore.Fence
}

// RegisterCompensation records an obligation as PENDING and due, or returns the one that its run
// already has for that effect key and kind. One round trip for a new obligation, and one more read
// for a replay.
//
// Errors: ErrNoSuchRun; runstore.ErrTooLarge above [MaxObligationNames], [MaxCompensation] and
// [MaxCompensator]; runstore.ErrFenced, for a replay too.
func (t *Tape) RegisterCompensation(ctx context.Context, c Compensation) (Obligation, error) {
	if err := t.admit("RegisterCompensation", c.Run, c.Fence); err != nil {
		return Obligation{}, err
	}
	fresh, err := c.obligation()
	if err != nil {
		return Obligation{}, err
	}
	o, err := obligations.create(ctx, t, c.Run, c.Fence, fresh.key(), func(o storedObligation, found bool) (storedObligation, *step, error) {
		if found {
			return o, nil, nil
		}
		return fresh, note(kindObligation, fresh.registration()), nil
	})
	return o.Obligation, err
}

// obligation returns the obligation to store.
func (c Compensation) obligation() (storedObligation, error) {
	names := []field{{"effect_key", c.EffectKey}, {"kind", c.Kind}}
	payload, ref := field{"payload_json", c.Payload}, field{"compensator_ref", c.Compensator}
	if err := checkText(append(names, payload, ref)...); err != nil {
		return storedObligation{}, err
	}
	if strings.Contains(c.Kind, "\x00") {
		return storedObligation{}, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "kind", Problem: "has a zero byte"}
	}
	o := storedObligation{
		Obligation: Obligation{
			Run: c.Run, EffectKey: c.EffectKey, Kind: c.Kind, Payload: c.Payload, Compensator: c.Compensator,
			Status: ObligationPending, MaxAttempts: c.MaxAttempts,
		},
		next: runstore.After(0),
	}
	if o.MaxAttempts <= 0 {
		o.MaxAttempts = defaultMaxAttempts
	}
	entry := len(compactJSON(o.registration()))
	if err := checkSize("the names of an obligation", entry, MaxObligationNames, names...); err != nil {
		return storedObligation{}, err
	}
	if err := checkLength(payload.name, payload.text, MaxCompensation); err != nil {
		return storedObligation{}, err
	}
	return o, checkLength(ref.name, ref.text, MaxCompensator)
}

// registration returns the payload of the entry that registers the obligation.
func (o storedObligation) registration() map[string]any {
	return map[string]any{
		"effect_key": o.EffectKey, "kind": o.Kind, "status": ObligationPending.word(), "transition": "registered",
	}
}

// alsoRegister adds the registration of an obligation to the step of another row of the same run,
// so that one commit writes both. The obligation's record is explained by an entry of its own,
// after those of s. It adds nothing if the run has the obligation already. If the obligation is
// registered between the read and the commit, the commit conflicts and the calling transition
// decides again. One read.
func (t *Tape) alsoRegister(ctx context.Context, s *step, o storedObligation) error {
	_, found, err := t.readRecord(ctx, o.Run, o.key())
	if err != nil || found {
		return err
	}
	s.entries = append(s.entries, journalEntry{kindObligation, o.registration()})
	s.guards = append(s.guards, runstore.AtVersion(o.key(), 0))
	write := obligations.write(o.key(), o)
	write.Event = len(s.entries) - 1
	s.writes.Records = append(s.writes.Records, write)
	return nil
}
