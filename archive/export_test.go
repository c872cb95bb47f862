package archive

import "strings"

// MakeDir makes a directory as [ExportDir] does.
var MakeDir = makeDir

// Resum computes the sums of an archive anew.
func Resum(whole string) string {
	var all strings.Builder
	sum := ""
	for line := range strings.Lines(whole) {
		body, _, _ := strings.Cut(line, sumKey)
		sum = sumOf(sum, []byte(body))
		all.WriteString(body + sumKey + sum + sumEnd + "\n")
	}
	return all.String()
}
