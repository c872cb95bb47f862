package conformance

// Title returns the short name of a guarantee.
func Title(guarantee string) string {
	return map[string]string{
		"I1":  "Exclusive: at most one live grant",
		"I2":  "Tokens only grow",
		"I3":  "Fenced: only the current grant writes",
		"I4":  "Atomic: a batch applies whole or not at all",
		"I5":  "Journal: dense seq, immutable, one order",
		"I6":  "Free readers: no lease, no waiting, nothing acknowledged is missed",
		"I7":  "Store clock: no caller's clock decides",
		"I8":  "Exactly once under retry",
		"I9":  "No lost work: index entries are found, and true",
		"I10": "Feed: a reader that resumes misses nothing",
		"I11": "Definite errors",
		"I12": "Limits",
		"I13": "Progress",
	}[guarantee]
}
