package tail_test

import "testing"

// TestFeedHistory checks that a restored store is found out by a reader that follows the feed, and by one that begins
// after the restore, where no subscriber presents a position that the store does not know.
func TestFeedHistory(t *testing.T) {
	for name, gap := range map[string]bool{"while a reader follows": false, "between two readers": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				e.probe.set(e.restored(1000))
				e.create(e.store, "r")
				e.mustAppend(e.store, "r", 5)
				s := e.subscribe(1000)
				rested()
				if s.count() != 5 {
					t.Errorf("%d events before the restore, want 5", s.count())
				}
				before := e.tail.FeedHistory()
				if gap {
					s.stop()
					rested()
				}
				e.probe.set(hooks{})
				low := e.subscribe(2)
				rested()
				e.wantFeed("a subscriber to the restored store", low)
				if now := e.tail.FeedHistory(); now == before {
					t.Errorf("FeedHistory is %d as before the restore", now)
				}
			})
		})
	}
}
