// Package delivery has the rules of work that is handed out under claims with a visibility timeout:
// the messages of package lease/claim, and in package tape the effects of the outbox, obligations
// and tasks. A claimed entry is invisible to other callers until its claim expires. The holder ends
// the claim with an outcome or a failure, and a failure leads to another attempt or to a dead letter.
//
// [Rules] are pure: they map a [State] to the next one, or refuse with a [Result] that says why. The
// caller stores the entry. It commits the next state under the condition that the entry's record is
// at the version that was read, so that of two transitions from one state one is applied. Expiry
// takes nothing from the holder: a late report counts until another claim follows.
//
//	Waiting   Claim     Claimed, or Dead if claims are attempts and none is left
//	Claimed   Claim     likewise, after the expiry
//	          Extend    Claimed
//	          Complete  Done
//	          Fail      Waiting, or Dead if no attempt is left or wanted
//	          Release   Waiting
//
// Open rules admit Complete and Fail of a waiting entry, too.
//
// [Claims] is the loop by which callers claim the due entries of an index. Entries that callers name
// are claimed by [Rules.Claim] alone.
//
// What the kinds of work do not share is not here: how an entry is stored and named, which proof of a
// claim its callers have, and what else a transition writes.
package delivery
