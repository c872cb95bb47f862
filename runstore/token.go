package runstore

import "fmt"

// Token is a fencing token: an integer that the store mints at each grant, higher than every token
// granted before on that run. Its high bits are the store's [Epoch], its low 40 bits a counter.
type Token int64

// Epoch numbers the incarnations of a store. An operator or the adapter raises it when the store
// may have lost acknowledged writes: after a restore from a backup or a failover to an older
// replica.
type Epoch int64

const (
	epochShift = 40
	// MaxEpoch keeps every token below 2^53, the largest integer that a JavaScript client can
	// hold.
	MaxEpoch Epoch = 1<<13 - 1
)

// Epoch returns the epoch under which the token was minted.
func (t Token) Epoch() Epoch { return Epoch(t >> epochShift) }

// Counter returns the token's number within its epoch.
func (t Token) Counter() int64 { return int64(t) & (1<<epochShift - 1) }

// String returns the token in its readable form: the counter, preceded by the epoch unless that is
// 0.
func (t Token) String() string {
	if t.Epoch() == 0 {
		return fmt.Sprint(t.Counter())
	}
	return fmt.Sprintf("%d.%d", t.Epoch(), t.Counter())
}

// Floor returns the lower bound of the tokens of epoch e, which are all above it. A grant whose
// token is not above the floor of the store's epoch was ended when the epoch was raised.
func (e Epoch) Floor() Token { return Token(e) << epochShift }

// Next returns the token of the grant after t in epoch e.
func (t Token) Next(e Epoch) Token { return max(t, e.Floor()) + 1 }
