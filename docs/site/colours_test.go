package site_test

import (
	"math"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// Text has a contrast of 4.5 to 1 at least to what is behind it, in light and in dark: level AA of
// the Web Content Accessibility Guidelines.
func TestContrast(t *testing.T) {
	t.Parallel()
	css, err := os.ReadFile("assets/site.css")
	if err != nil {
		t.Fatal(err)
	}
	colours := map[string][2]string{} // by name: in light, in dark
	for _, m := range regexp.MustCompile(`--(\w+): light-dark\((#\w{6}), (#\w{6})\);`).FindAllSubmatch(css, -1) {
		colours[string(m[1])] = [2]string{string(m[2]), string(m[3])}
	}
	for _, pair := range [][2]string{
		{"text", "back"}, {"text", "panel"}, {"text", "here"},
		{"quiet", "back"}, {"quiet", "panel"}, {"quiet", "here"},
		{"link", "back"}, {"link", "panel"}, {"link", "here"},
		{"keyword", "panel"}, {"string", "panel"}, {"number", "panel"},
	} {
		for i, scheme := range []string{"light", "dark"} {
			if c := contrast(t, colours[pair[0]][i], colours[pair[1]][i]); c < 4.5 {
				t.Errorf("%s on %s in %s: contrast %.1f, want 4.5 at least", pair[0], pair[1], scheme, c)
			}
		}
	}
	if c := contrast(t, "#ffffff", "#000000"); math.Abs(c-21) > 0.01 {
		t.Errorf("the contrast of white and black is computed as %.2f, want 21", c)
	}
}

// contrast returns the contrast ratio of two colours, as WCAG 2 defines it.
func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	la, lb := luminance(t, a), luminance(t, b)
	return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)
}

// luminance returns the relative luminance of a colour, #rrggbb.
func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	if len(colour) != 7 {
		t.Fatalf("the colour %q is not of the form #rrggbb", colour)
	}
	var sum float64
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(colour[1+2*i:3+2*i], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= 0.04045 {
			sum += weight * c / 12.92
		} else {
			sum += weight * math.Pow((c+0.055)/1.055, 2.4)
		}
	}
	return sum
}
