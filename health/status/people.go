package status

// SeeDoctor is what to do next about a failure whose text can only say what was seen.
const SeeDoctor = "azure-kms-plugin doctor, with the plugin's own flags and environment, shows at which step it ends."

// OnTheWay reports whether a failure lies on the way to the key, where doctor goes step
// by step. Of the others the vault itself has said what to mend.
func (f *Failure) OnTheWay() bool { return f.Kind == "Fault" || f.Kind == "Refusal" }

// Alarming returns the first alarm that is more than a warning, or nil, and counts the
// warnings. A phase is about the version that writes: Usable says nothing of the data
// under older ones.
func (d *Document) Alarming() (critical *Alarm, warnings int) {
	for i, a := range d.Alarms {
		switch {
		case !a.critical():
			warnings++
		case critical == nil:
			critical = &d.Alarms[i]
		}
	}
	return critical, warnings
}
