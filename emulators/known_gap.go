package emulators

// KnownGap is one known difference between an emulator and its service.
type KnownGap struct {
	// Emulator is what the emulator does, and Service what the service does.
	Emulator, Service string
	// Cases are the cases of the conformance suite that it affects, "I4/…". They pass nevertheless:
	// no case is exempted.
	Cases []string
	// Handled is how the emulator's package or the adapter deals with it.
	Handled string
}
