// Package status is the status document: what one plugin knows of its key, for
// programs to read. It is served as /status and written to the status file.
//
// Start with [Document], which is documented field by field, and [Decode], which
// reads one from outside. [Document.Exit] is what a command that shows it ends
// with. The package links nothing of Azure and nothing of Kubernetes, so that
// whoever reads documents need not either.
//
// # Compatibility
//
// Fields are added, never renamed or given another meaning under one APIVersion.
// A reader must ignore what it does not know. Lists of words (phases, reasons,
// roles) may grow in the same way.
//
// # Secrets
//
// A document holds names of keys and hosts, times, counts, and texts that are made to be
// shown. It never holds key material, seeds, ciphertext, tokens, or identifiers of
// people, tenants or subscriptions.
package status

import "time"

// APIVersion and Kind are what every document says of itself.
const (
	APIVersion = "azure-kms-plugin/v1"
	Kind       = "KMSPluginStatus"
)

// A Document is the state of one plugin at a moment. Times are by the clock of its
// machine; those that are left out have not happened, or are not known.
type Document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// ObservedTime is when the document was made. One that is older than
	// StaleAfterSeconds says nothing about now: a plugin that lives makes it anew
	// more often, a file outlives its writer. One that ends in good order leaves a file
	// with 0.
	ObservedTime      time.Time `json:"observedTime"`
	StaleAfterSeconds int       `json:"staleAfterSeconds"`
	Instance          Instance  `json:"instance"`

	// Key is the URL of the key, without a version. Following says that new
	// versions are adopted; otherwise the version is pinned.
	Key       string `json:"key"`
	Following bool   `json:"following"`
	// KeyID is the KMS key ID under which this plugin writes now; empty while no
	// version is known. KeyIDHash is the same as kube-apiserver's metrics show it,
	// "sha256:" and the hex SHA-256 of the ID. RemoteKeyID is KeyID, under the name
	// that OpenShift's operators give it.
	KeyID       string `json:"keyID"`
	KeyIDHash   string `json:"keyIDHash"`
	RemoteKeyID string `json:"remoteKeyID"`

	// Answer is what a kube-apiserver that calls Status is told at this moment.
	Answer Answer `json:"answer"`
	// Phase sums up: see Phases.
	Phase Phase `json:"phase"`
	// Failure is why the phase is not Usable; left out when it is.
	Failure *Failure `json:"failure,omitempty"`
	// LastSuccessTime is when a remote decrypt under the version that writes last
	// succeeded; left out for never.
	LastSuccessTime *time.Time `json:"lastSuccessTime,omitempty"`

	// Conditions has one of each of ConditionTypes, in that order.
	Conditions []Condition `json:"conditions"`
	// Alarms are what somebody has to act on, the gravest first.
	Alarms []Alarm `json:"alarms"`
	// Keys has one entry for each version that is known, the one that writes first,
	// then the others by their last use.
	Keys     []Key     `json:"keys"`
	Rotation *Rotation `json:"rotation,omitempty"`

	// Clients are those of the open connections that say most, MaxClients at most: API
	// servers first, then the latest. ClientCount is how many are open in all.
	Clients     []Client    `json:"clients"`
	ClientCount int         `json:"clientCount"`
	Activity    Activity    `json:"activity"`
	Credentials Credentials `json:"credentials"`
}

// An Instance tells one process from another, whatever URL leads to it.
type Instance struct {
	// ID is random, and another one for each start.
	ID string `json:"id"`
	// BootID is the kernel's for the boot of the machine, if it can be read.
	BootID    string    `json:"bootID,omitempty"`
	Node      string    `json:"node"` // the host's name
	PID       int       `json:"pid"`
	Socket    string    `json:"socket"` // the address of the KMS socket
	Version   string    `json:"version"`
	StartTime time.Time `json:"startTime"`
}

// An Answer is what Status says. Text is "ok" or the text of the gRPC error, which
// begins with the reason.
type Answer struct {
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

// A Failure is what stands between the plugin and its key.
type Failure struct {
	Reason string `json:"reason"`          // one of keyvault.Reasons
	Cause  string `json:"cause,omitempty"` // refines Unreachable, VaultNotFound and CredentialsUnavailable
	Kind   string `json:"kind"`            // KeyState, Refusal, Fault or Unwritable
	// Since is when it was first seen since the last success.
	Since time.Time `json:"since"`
	// LossTime is when it will be obeyed as a loss if no decrypt succeeds before, or
	// when it was; left out if never.
	LossTime *time.Time `json:"lossTime,omitempty"`
	// ScheduledPurgeTime is when the vault destroys a deleted key, where the plugin may read it.
	ScheduledPurgeTime *time.Time `json:"scheduledPurgeTime,omitempty"`
	// Text says what was seen and what to mend.
	Text string `json:"text"`
}

// A Phase sums up the state of the version that writes.
type Phase string

// The phases.
const (
	Starting Phase = "Starting" // nothing is known yet
	Usable   Phase = "Usable"   // the last evidence is a success
	Degraded Phase = "Degraded" // a failure that Status does not show, or not yet
	ReadOnly Phase = "ReadOnly" // the key decrypts and refuses to encrypt
	CutOff   Phase = "CutOff"   // Status fails: a peer's seed cannot be opened here
	Lost     Phase = "Lost"     // Status fails: obeyed as a loss until a decrypt succeeds
)

// Phases lists every Phase.
func Phases() []Phase { return []Phase{Starting, Usable, Degraded, ReadOnly, CutOff, Lost} }

// A Condition has the fields and the JSON of metav1.Condition.
type Condition struct {
	Type               ConditionType   `json:"type"`
	Status             ConditionStatus `json:"status"`
	LastTransitionTime time.Time       `json:"lastTransitionTime"`
	Reason             string          `json:"reason"`
	Message            string          `json:"message"`
}

// A ConditionStatus is True, False or Unknown.
type ConditionStatus string

// The values of a ConditionStatus.
const (
	True    ConditionStatus = "True"
	False   ConditionStatus = "False"
	Unknown ConditionStatus = "Unknown"
)

// A ConditionType names a condition. All but Degraded are good when True.
type ConditionType string

// The conditions.
const (
	KeyAvailable     ConditionType = "KeyAvailable"     // the vault has the version that writes, enabled
	CredentialsValid ConditionType = "CredentialsValid" // the vault or the token endpoint lets the identity in
	EncryptionReady  ConditionType = "EncryptionReady"  // a kube-apiserver would get a new seed now
	DecryptionReady  ConditionType = "DecryptionReady"  // every version that data is under can be read now
	IsDegraded       ConditionType = "Degraded"         // something needs attention
	KeyRotated       ConditionType = "KeyRotated"       // the newest version is the one that writes
)

// ConditionTypes lists every condition, in the order of the document.
func ConditionTypes() []ConditionType {
	return []ConditionType{KeyAvailable, CredentialsValid, EncryptionReady, DecryptionReady, IsDegraded, KeyRotated}
}

// An Alarm is something to act on. Its text says what to do, and what not.
type Alarm struct {
	Severity Severity `json:"severity"`
	Reason   string   `json:"reason"`
	// Version and KeyID name the key version that it is about; empty for the key as a whole.
	Version string `json:"version,omitempty"`
	KeyID   string `json:"keyID,omitempty"`
	Text    string `json:"text"`
}

// A Severity says how soon somebody has to act.
type Severity string

// The severities.
const (
	Critical Severity = "critical" // data is or will soon be out of reach
	Warning  Severity = "warning"  // in the coming days
)

// A Key is one version.
type Key struct {
	Version   string `json:"version"`
	KeyID     string `json:"keyID"`
	KeyIDHash string `json:"keyIDHash"`
	Role      Role   `json:"role"`
	// URL is the version's, for keys that are kept for decrypting beside the one served.
	URL string `json:"url"`

	// What the vault said at AttributesTime; left out where it was not asked or did not tell.
	AttributesTime     *time.Time `json:"attributesTime,omitempty"`
	Enabled            *bool      `json:"enabled,omitempty"`
	CreatedTime        *time.Time `json:"createdTime,omitempty"`
	NotBeforeTime      *time.Time `json:"notBeforeTime,omitempty"`
	ExpiryTime         *time.Time `json:"expiryTime,omitempty"`
	RecoveryLevel      string     `json:"recoveryLevel,omitempty"`
	ScheduledPurgeTime *time.Time `json:"scheduledPurgeTime,omitempty"`
	// Reason is why it cannot be used, as far as is known; empty if it can.
	Reason string `json:"reason,omitempty"`

	// Use by kube-apiservers through this process, since its start.
	Encrypts        uint64     `json:"encrypts"`
	Decrypts        uint64     `json:"decrypts"`
	Failures        uint64     `json:"failures"`
	LastEncryptTime *time.Time `json:"lastEncryptTime,omitempty"`
	LastDecryptTime *time.Time `json:"lastDecryptTime,omitempty"`
}

// A Role is what a version is for.
type Role string

// The roles.
const (
	RoleWrite Role = "write" // new data is written under it
	RoleNext  Role = "next"  // newer than the one that writes
	RoleRead  Role = "read"  // older: data may be under it
)

// A Rotation is the latest change of the version that writes, or the one ahead.
type Rotation struct {
	From  string        `json:"from,omitempty"` // versions
	To    string        `json:"to"`
	State RotationState `json:"state"`
	// StartedTime is when this plugin learned of To, CompletionTime when it began to
	// write under it. That data has been rewritten is another matter: see the observer.
	StartedTime    *time.Time `json:"startedTime,omitempty"`
	CompletionTime *time.Time `json:"completionTime,omitempty"`
	// DueTime is when To begins to write, as far as is known.
	DueTime *time.Time `json:"dueTime,omitempty"`
}

// A RotationState is how far a plugin is with one rotation.
type RotationState string

// The states of a rotation.
const (
	RotationPending RotationState = "Pending" // To is known and does not write yet
	RotationWaiting RotationState = "Waiting" // To is due and cannot write
	RotationAdopted RotationState = "Adopted" // To writes
	RotationPinned  RotationState = "Pinned"  // To is newer, and another version is pinned
)

// MaxClients bounds the clients in a document: whoever may open connections must not make
// it larger than a reader takes.
const MaxClients = 64

// A Client is an open connection to the socket.
type Client struct {
	PID int `json:"pid,omitempty"` // where the PID namespace is shared
	// APIServer: it has encrypted or decrypted. Others only ask for the state.
	APIServer bool      `json:"apiServer"`
	KeyID     string    `json:"keyID,omitempty"` // that Status last told it
	Since     time.Time `json:"since"`
}

// Activity is what the process has done since its start.
type Activity struct {
	LastGetProbeTime     *time.Time `json:"lastGetProbeTime,omitempty"`
	LastDecryptProbeTime *time.Time `json:"lastDecryptProbeTime,omitempty"`
	LastPollTime         *time.Time `json:"lastPollTime,omitempty"` // that showed the newest version
	// MetadataAccess is false if the identity may not get the key's attributes, which is optional.
	MetadataAccess bool    `json:"metadataAccess"`
	OutageSeconds  float64 `json:"outageSeconds"` // during which the last evidence was a failure
}

// Credentials are how the plugin signs in.
type Credentials struct {
	Method string `json:"method"`
	// ExpiryTime is when the certificate that signs in expires.
	ExpiryTime *time.Time `json:"expiryTime,omitempty"`
	// Reloads counts the times that a changed file was taken over, FailedReloads those
	// that it could not be, so that the identity before goes on.
	Reloads       uint64 `json:"reloads"`
	FailedReloads uint64 `json:"failedReloads"`
	// Fault is what keeps a changed file from being used now; left out when all is well.
	Fault string `json:"fault,omitempty"`
}
