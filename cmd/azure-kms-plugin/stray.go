package main

import (
	"slices"
	"strings"
)

// stray returns the arguments that are neither flags nor, by what is known of these, their
// values. What follows an unknown flag is taken for its value, unless it is a command.
func stray(args []string, further ...flagSpec) (rest []string) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if !strings.HasPrefix(arg, "-") {
			rest = append(rest, arg)
			continue
		}
		if strings.Contains(arg, "=") || i+1 == len(args) {
			continue
		}
		next := args[i+1]
		switch known, takes := takesValue(flagName(arg), further); {
		case known && takes,
			known && isBool(next), // the fault of a switch says what is wrong there
			!known && !strings.HasPrefix(next, "-") && !slices.Contains(commands, next):
			i++
		}
	}
	return rest
}

// takesValue says what is known of a flag of serve, or of those further ones.
func takesValue(name string, further []flagSpec) (known, takes bool) {
	if toggle, ok := klogFlags[name]; ok {
		return true, !toggle
	}
	if name == "h" || name == "help" {
		return true, false
	}
	for _, g := range flagGroups {
		further = append(slices.Clone(further), g.flags...)
	}
	i := slices.IndexFunc(further, func(f flagSpec) bool { return f.name == name })
	if i < 0 {
		return false, false
	}
	return true, further[i].arg != ""
}

// lateCommand returns the command that stands after flags, where it is not looked for.
func lateCommand(args []string) string {
	for _, arg := range stray(args) {
		if slices.Contains(commands, arg) || arg == "help" {
			return arg
		}
	}
	return ""
}

// meansStatus reports whether an argument leads to a document, as those of status do.
func meansStatus(arg string) bool { return strings.ContainsAny(arg, ":/") || isPort(arg) }

func asksForHelp(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool { return arg == "-h" || arg == "--h" || arg == "-help" || arg == "--help" })
}
