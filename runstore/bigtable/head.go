package bigtable

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// maxNonces is how many revisions a head has the nonces of, eight bytes each. A handle whose predicate
// did not match reads the head to find out why. 64: a holder that never pauses takes some 300 ms for as
// many writes, many times as long as that read.
const maxNonces = 64

// head is the cell that every write of a run replaces, together with a small cell that has the revision and
// the nonce of the write. Every write's predicate compares the small cell. Ids and names are []byte, because
// JSON strings cannot hold arbitrary bytes.
type head struct {
	// Format is the format of the run's row, see format.go.
	Format int `json:"format,omitempty"`
	// Rev counts the writes of the row, purges and creations included. It only grows. Nonces has the
	// nonces of the last writes, the newest first, eight bytes each: a writer whose reply was lost
	// finds its own.
	Rev    int64  `json:"rev"`
	Nonces []byte `json:"by"`
	// Stamp is the timestamp of the row's cells, which names an epoch, and Forks says where the run left
	// histories that the store has lost; see failover.go.
	Stamp int64  `json:"stamp,omitempty"`
	Forks []fork `json:"forks,omitempty"`
	// Generation is the revision that created the run: an id that is purged and created again has another
	// one. GenerationBy is the nonce of that revision.
	Generation   int64  `json:"life"`
	GenerationBy uint64 `json:"lifeBy,omitempty"`
	Purged       bool   `json:"purged,omitempty"`

	Status   int32 `json:"status"`
	Unlisted bool  `json:"unlisted,omitempty"`
	Created  int64 `json:"created"`
	Runnable int64 `json:"runnable,omitempty"`
	// RunnableRev and RunnableBy are the revision and the nonce of the run's entry in IndexRunnable.
	RunnableRev int64  `json:"runnableRev,omitempty"`
	RunnableBy  uint64 `json:"runnableBy,omitempty"`
	Seq         int64  `json:"seq"`
	// RunnableFrom is the time of that entry if it is later than Runnable: the expiry of the current
	// grant as granted. See runnable.go.
	RunnableFrom int64 `json:"runnableFrom,omitempty"`
	// Sealed is how many segments of the journal are rows of their own.
	Sealed int64 `json:"sealed,omitempty"`
	// PagedFrom is the last event that must not stand in an open page of the feed's log: a program of
	// format 4 may have committed it. See feedpage.go.
	PagedFrom int64 `json:"pagedFrom,omitempty"`
	// Time is the time of the last write: a run's times never go back.
	Time int64 `json:"time"`

	Epoch  int64  `json:"epoch"`
	Token  int64  `json:"token"`
	State  int    `json:"state"`
	Grant  []byte `json:"grant,omitempty"`
	Owner  []byte `json:"owner,omitempty"`
	Role   []byte `json:"role,omitempty"`
	Strict bool   `json:"strict,omitempty"`
	From   []byte `json:"from,omitempty"`
	Why    []byte `json:"why,omitempty"`
	// Expires and TTL are the expiry and the TTL of the last grant or renewal; see expiry.
	Expires int64 `json:"expires,omitempty"`
	TTL     int64 `json:"ttl,omitempty"`
	// Asked is the TTL of the last renewal, if it was too short to move the expiry.
	Asked int64 `json:"asked,omitempty"`
	// Granted, Renewed and Progressed are times of the last grant. MaxStall is how long its holder
	// may renew without progress, in microseconds. FormerEnd is how the grant before it ended.
	Granted    int64 `json:"granted,omitempty"`
	Renewed    int64 `json:"renewed,omitempty"`
	Progressed int64 `json:"progressed,omitempty"`
	MaxStall   int64 `json:"maxStall,omitempty"`
	FormerEnd  int   `json:"formerEnd,omitempty"`

	// Floor is the highest version of a deleted record.
	Floor int64 `json:"floor,omitempty"`
	// Batches counts the results that were kept. The last maxResults of them are cells of the row.
	Batches int64 `json:"batches,omitempty"`
	// MarkRev and MarkBy are the revision and the nonce of the run's mark, 0 when it has none; see
	// orphanscan.go.
	MarkRev int64  `json:"markRev,omitempty"`
	MarkBy  uint64 `json:"markBy,omitempty"`
	// EventBytes and RecordBytes are the bytes of events and of records in the row.
	EventBytes  int64 `json:"eventBytes,omitempty"`
	RecordBytes int64 `json:"recordBytes,omitempty"`
	// Moved is the revision of the last move of records out of the row, 0 if there was none, and
	// ColdTop the highest version of a record that was moved; see cold.go.
	Moved   int64 `json:"moved,omitempty"`
	ColdTop int64 `json:"coldTop,omitempty"`
	// ListedRev and ListedBy are the revision and the nonce of an import that changed Created, and with
	// it the run's entry in IndexRuns; 0 if the entry is that of the creation. Programs that do not know
	// these fields refuse the run.
	ListedRev int64  `json:"listedRev,omitempty"`
	ListedBy  uint64 `json:"listedBy,omitempty"`
}

// maxExpirySkew is how far the expiry that a holder computed may differ from the one that Bigtable's
// timestamp of the grant yields. 1 s: longer than a request. See expiry for short TTLs.
const maxExpirySkew = time.Second

// expiry returns the expiry of the last grant. The holder has computed one from its estimate of Bigtable's
// clock and returned it to its caller. beat is the timestamp that Bigtable gave the grant or renewal. If they
// differ by more than a request takes (a process was suspended, a server's clock stepped), Bigtable's counts.
//
// A holder trusts its lease for the TTL from its request on, less the margin of its keeper, a tenth of the TTL
// by default. An expiry that is earlier than Bigtable's by more than a sixteenth of the TTL therefore does not
// count: another handle would get the lease while its holder trusts it. A strict lease may end a quarter of
// the TTL early, so that the store accepts no write after the expiry that the grant returned.
func (h *head) expiry(beat int64) int64 {
	if h.Expires == 0 || beat == 0 {
		return h.Expires
	}
	own, most := beat+h.TTL, min(maxExpirySkew.Microseconds(), h.TTL/4)
	mostEarly := min(most, h.TTL/16)
	if h.Strict {
		mostEarly = most
	}
	if early := own - h.Expires; early > mostEarly || -early > most {
		return own
	}
	return h.Expires
}

// rules returns the head in the form in which package rules judges requests.
func (h *head) rules(id runstore.RunID, beat int64) rules.Head {
	expires := runstore.FromMicros(h.expiry(beat))
	r := rules.Head{
		Run: runstore.Run{
			ID: id, Status: runstore.Status(h.Status), Unlisted: h.Unlisted, CreatedAt: runstore.FromMicros(h.Created),
			RunnableAt: runstore.FromMicros(h.Runnable), LastSeq: runstore.Seq(h.Seq), Token: runstore.Token(h.Token),
			ExpiresAt: expires,
		},
		Grant: runstore.GrantID(h.Grant), State: rules.GrantState(h.State), Epoch: runstore.Epoch(h.Epoch),
	}
	if r.State == rules.Current {
		r.Holder = runstore.Holder{
			Owner: runstore.Owner(h.Owner), Reactor: runstore.Reactor(h.Role), Token: r.Token, ExpiresAt: expires, Strict: h.Strict,
			TTL: micros(cmp.Or(h.Asked, h.TTL)), MaxStall: micros(h.MaxStall), Former: runstore.GrantEnd(h.FormerEnd),
			GrantedAt: runstore.FromMicros(h.Granted), RenewedAt: runstore.FromMicros(h.Renewed), ProgressedAt: runstore.FromMicros(h.Progressed),
			Preempted: runstore.Preempted{From: runstore.Owner(h.From), Reason: string(h.Why)},
		}
	} else if r.State != rules.None {
		r.Last = runstore.Term{Owner: runstore.Owner(h.Owner), Reactor: runstore.Reactor(h.Role), GrantedAt: runstore.FromMicros(h.Granted)}
	}
	return r
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// grant records a grant of package rules.
func (h *head) grant(r rules.Head) {
	h.allowOpenPages()
	h.Token, h.State, h.Grant = int64(r.Token), int(r.State), []byte(r.Grant)
	h.Owner, h.Role, h.Strict = []byte(r.Holder.Owner), []byte(r.Holder.Reactor), r.Holder.Strict
	h.From, h.Why = []byte(r.Holder.Preempted.From), []byte(r.Holder.Preempted.Reason)
	h.Expires, h.TTL, h.Asked = runstore.Micros(r.ExpiresAt), r.Holder.TTL.Microseconds(), 0
	h.Granted, h.Renewed, h.Progressed = runstore.Micros(r.Holder.GrantedAt), runstore.Micros(r.Holder.RenewedAt), runstore.Micros(r.Holder.ProgressedAt)
	h.MaxStall, h.FormerEnd = r.Holder.MaxStall.Microseconds(), int(r.Holder.Former)
}

// renew records a renewal of package rules, and reports whether it extended the lease: a renewal never
// shortens one.
func (h *head) renew(r rules.Head) (extended bool) {
	h.requires(formatGrants)
	h.Renewed, h.Asked = runstore.Micros(r.Holder.RenewedAt), r.Holder.TTL.Microseconds()
	if r.Holder.RenewedAt.Add(r.Holder.TTL).Truncate(runstore.TimePrecision).Before(r.ExpiresAt) {
		return false
	}
	h.Expires, h.TTL, h.Asked = runstore.Micros(r.ExpiresAt), h.Asked, 0
	return true
}

// addRevision counts a write and records its nonce.
func (h *head) addRevision(nonce uint64) {
	h.Rev++
	h.Nonces = append(binary.BigEndian.AppendUint64(nil, nonce), h.Nonces[:min(len(h.Nonces), 8*(maxNonces-1))]...)
}

// wrote reports whether the write with the nonce made revision rev. known is false if the head has the nonces
// of later revisions only.
func (h *head) wrote(rev int64, nonce uint64) (wrote, known bool) {
	i := 8 * (h.Rev - rev)
	if i < 0 {
		return false, true
	}
	if i+8 > int64(len(h.Nonces)) {
		return false, false
	}
	return binary.BigEndian.Uint64(h.Nonces[i:]) == nonce, true
}

// revision returns the value of the small cell. It is different for each write.
func (h *head) revision() []byte {
	return append([]byte(be64(h.Rev)), h.Nonces[:8]...)
}

func (h *head) encode() []byte {
	b, _ := json.Marshal(h) // numbers and bytes only: it cannot fail
	return b
}

func decodeHead(id runstore.RunID, b []byte) (h head, err error) {
	err = decode(b, &h, &h.Format, fmt.Sprintf("run %q", id))
	return h, err
}

// recordMeta is the header of a record's cell; the value follows it.
type recordMeta struct {
	Version    int64         `json:"v"`
	CreatedSeq int64         `json:"cs"`
	Created    int64         `json:"c"`
	UpdatedSeq int64         `json:"us"`
	Updated    int64         `json:"u"`
	CreatedBy  int64         `json:"ct,omitempty"` // the tokens of the fences…
	UpdatedBy  int64         `json:"ut,omitempty"` // …under which it was written
	Rev        int64         `json:"r"`            // the revision that wrote it…
	By         uint64        `json:"x"`            // …and its nonce
	Entries    []storedEntry `json:"p,omitempty"`  // its entries in indexes
	Pack       *packed       `json:"d,omitempty"`  // where its value is, if not in the cell
	Reserved   int64         `json:"m,omitempty"`  // bytes of the row for records that a later batch puts in its place
	Tombstone  bool          `json:"g,omitempty"`  // the record was deleted, and the cell hides a cold row
	Hides      int64         `json:"u0,omitempty"` // the move of the cold row that the cell hides, or 0
	Above      int64         `json:"a,omitempty"`  // the record's next version is above this one, see cold.go
	size       int64         // its footprint
	coldRev    int64         // the move with which it left the row, 0 if it is in the row
}

// isMovable reports whether the record of a key may leave the run's row. Scans of queues and reads of a run's
// summary look only in the row.
func (m *recordMeta) isMovable(key runstore.RecordKey) bool {
	return len(m.Entries) == 0 && m.Reserved == 0 && key != runstore.SummaryKey
}

// hides returns the move of the cold row that the next cell of the record hides, or 0.
func (m *recordMeta) hides() int64 {
	if m.coldRev != 0 {
		return m.coldRev
	}
	return m.Hides
}

// footprint returns how many bytes a record counts in head.RecordBytes: its cell, or what it reserves if that
// is more. Each nonce in the cell counts with the most digits that one has. So two attempts of a request from the
// same revision count the same: if one does not fit, no copy of an earlier one can be applied.
func (m *recordMeta) footprint(key runstore.RecordKey, cell []byte) int64 {
	size := len(key) + len(cell) + missingDigits(m.By)
	if m.Pack != nil {
		size += missingDigits(m.Pack.Nonce)
	}
	return max(int64(size), m.Reserved)
}

// missingDigits returns how many decimal digits the greatest nonce has more than the given one.
func missingDigits(nonce uint64) int {
	return len(strconv.FormatUint(math.MaxUint64, 10)) - len(strconv.FormatUint(nonce, 10))
}

// reserveFor returns the upper bound of the bytes that records take which a later batch puts into a full
// row. While the records of the row take more than maxRecordBytes, only tiny values stay in the row, and
// the one value that passes maxRecordBytes. There is room for that one unless the others take it. A
// value in a pack takes less than a tiny one, because the reference to the pack has less than tinyValue
// bytes. Records without index entries need no room, because they can leave the row.
func reserveFor(later []runstore.RecordWrite) (room int64) {
	const most = math.MaxInt64
	if !slices.ContainsFunc(later, func(w runstore.RecordWrite) bool {
		return !w.Delete && (len(w.Index) > 0 || w.Key == runstore.SummaryKey)
	}) {
		return 0
	}
	for _, w := range later {
		if w.Delete {
			continue
		}
		m := recordMeta{
			Version: most, CreatedSeq: most, Created: most, UpdatedSeq: most, Updated: most, CreatedBy: most, UpdatedBy: most, Rev: most, By: math.MaxUint64, Reserved: most,
		}
		for _, p := range w.Index {
			m.Entries = append(m.Entries, storedEntry{[]byte(p.Index), most})
		}
		room += int64(len(w.Key) + len(encodeCell(&m, nil)) + min(len(w.Value), tinyValue))
	}
	if room > maxPinnedBytes-maxRecordBytes-maxInline {
		room += maxInline
	}
	return room
}

// storedEntry is an index entry of a record, as the record's cell names it.
type storedEntry struct {
	Index []byte `json:"i"`
	At    int64  `json:"t"`
}

func (m *recordMeta) indexEntries(id runstore.RunID, key runstore.RecordKey) []indexEntry {
	all := make([]indexEntry, len(m.Entries))
	for i, s := range m.Entries {
		all[i] = indexEntry{string(s.Index), s.At, m.Updated, id, key, m.Rev, m.By}
	}
	return all
}

func (m *recordMeta) record(key runstore.RecordKey, value []byte) runstore.Record {
	if value == nil {
		value = []byte{}
	}
	return runstore.Record{
		Key: key, Version: runstore.Version(m.Version), Value: value,
		Created: runstore.Stamp{Seq: runstore.Seq(m.CreatedSeq), Time: runstore.FromMicros(m.Created), Token: runstore.Token(m.CreatedBy)},
		Updated: runstore.Stamp{Seq: runstore.Seq(m.UpdatedSeq), Time: runstore.FromMicros(m.Updated), Token: runstore.Token(m.UpdatedBy)},
	}
}

// eventMeta is the header of an event; its data follow it.
type eventMeta struct {
	Kind  []byte  `json:"k,omitempty"`
	Time  int64   `json:"t"`
	Token int64   `json:"n,omitempty"`
	Owner []byte  `json:"o,omitempty"`
	Nonce uint64  `json:"x,omitempty"` // of the write, on its first event
	Pack  *packed `json:"d,omitempty"`
}

func (a *eventMeta) event(seq int64, data []byte) runstore.Event {
	if data == nil {
		data = []byte{}
	}
	return runstore.Event{
		Seq: runstore.Seq(seq), Kind: string(a.Kind), Data: data, Time: runstore.FromMicros(a.Time),
		Token: runstore.Token(a.Token), Owner: runstore.Owner(a.Owner),
	}
}

// encodeCell returns a cell of a header and a value.
func encodeCell(meta any, value []byte) []byte {
	header, _ := json.Marshal(meta) // numbers and bytes only: it cannot fail
	cell := make([]byte, 0, len(header)+len(value)+4)
	cell = binary.AppendUvarint(cell, uint64(len(header)))
	return append(append(cell, header...), value...)
}

// decodeCell is the inverse of encodeCell.
func decodeCell(cell []byte, meta any) (value []byte, err error) {
	header, value, ok := cutFrame(cell)
	if !ok {
		return nil, corrupt(fmt.Errorf("a cell of %d bytes that this program did not write", len(cell)))
	}
	if err := json.Unmarshal(header, meta); err != nil {
		return nil, corrupt(fmt.Errorf("a cell that this program did not write: %w", err))
	}
	return bytes.Clone(value), nil
}
