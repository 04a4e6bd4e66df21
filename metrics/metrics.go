// Package metrics declares every series of azure-kms-plugin.
//
// Start with [New], which registers them, and [Handler], which serves them. What
// happens is counted by the methods of [Metrics]; what is at a moment is asked for
// at each scrape, by the functions of [Config].
// All names begin with azure_kms_, but for the process_ and go_ series.
//
// Label values come from closed lists: operations, reasons, and the key IDs
// that the keyring vouches for, hashed as kube-apiserver's own metrics hash
// them, so that the two can be joined. Those of conditions and alarms are there while
// they hold: one series for each type, and one for each version with an alarm. Every series of the key that writes
// exists at zero from the first scrape, so that an alert on an increase sees
// the first failure.
//
// # Concurrency
//
// All methods may be called from many goroutines.
//
// # Failure
//
// Nothing here calls the vault, so /metrics answers whatever state it is in.
//
// # Secrets
//
// No error text, URL, or unhashed key ID becomes a label.
package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

// maxKeyIDs bounds the key IDs that get series of their own because the vault has
// used them: far more than the versions that a cluster holds data under. maxUnproven
// bounds those that only requests speak of, since anybody can make one up that
// fits. What this process writes under always has its own.
const (
	maxKeyIDs   = 64
	maxUnproven = 16
)

// unknownKeyID is the label value of requests whose key ID belongs to no
// configured key, or that have none.
const unknownKeyID = "unknown"

// Buckets begin at half a millisecond, where Status is, and end at kube-apiserver's patience.
var durationBuckets = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

// Config configures New. The functions are called at each scrape and must
// answer from memory; nil leaves their series out.
type Config struct {
	// Build describes this program.
	Build Build
	// KeyIDs are those that have series from the start: the ID that writes
	// and those of the keys that are kept for decrypting.
	KeyIDs []string
	// Operations are those of the KMS API.
	Operations []string
	// Key says how the key is.
	Key func() Key
	// Conditions are those of the status document.
	Conditions func() []status.Condition
	// Alarms are those of single versions of the key.
	Alarms func() []Alarm
	// Credential says how signing in is doing.
	Credential func() keyvault.CredentialState
	// DroppedLogLines counts log lines that were left out by sampling.
	DroppedLogLines func() uint64
}

// Build describes the program, for a series whose value is always 1.
type Build struct {
	Version   string
	Revision  string
	GoVersion string
	FIPS140   string // the version of the FIPS 140-3 module in use, or "off"
}

// Metrics holds the instruments.
type Metrics struct {
	requests        *prometheus.CounterVec
	requestDuration *prometheus.HistogramVec
	calls           *prometheus.CounterVec
	callDuration    *prometheus.HistogramVec
	writes          *prometheus.GaugeVec
	operations      []string

	mu     sync.RWMutex
	hashes map[string]string // key ID to label value
	// proven and unproven count those that are held against their bounds.
	proven, unproven int

	writing sync.Mutex
	writer  string // the label value that is 1
}

// New registers every series with reg.
func New(reg prometheus.Registerer, cfg Config) *Metrics {
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	ours := prometheus.WrapRegistererWithPrefix("azure_kms_", reg)
	f := promauto.With(ours)
	m := &Metrics{
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "requests_total",
			Help: "KMS requests answered, by operation, key and reason; the reason is Success or why they failed.",
		}, []string{"operation", "key_id_hash", "reason"}),
		requestDuration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "request_duration_seconds",
			Help:    "How long KMS requests took, the vault included.",
			Buckets: durationBuckets,
		}, []string{"operation"}),
		calls: f.NewCounterVec(prometheus.CounterOpts{
			Name: "vault_requests_total",
			Help: "HTTP exchanges with the vault, by operation and reason; retries and the program's own probes are counted too.",
		}, []string{"operation", "reason"}),
		callDuration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "vault_request_duration_seconds",
			Help:    "How long HTTP exchanges with the vault took.",
			Buckets: durationBuckets,
		}, []string{"operation"}),
		writes: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "write_key",
			Help: "1 for the key ID under which new data is written, 0 for those under which this process wrote before.",
		}, []string{"key_id_hash"}),
		operations: cfg.Operations,
		hashes:     make(map[string]string),
	}
	m.expose(unknownKeyID)
	for _, id := range cfg.KeyIDs {
		m.keep(id)
	}
	for _, op := range m.operations {
		m.requestDuration.WithLabelValues(op)
	}
	for _, op := range keyvault.Ops() {
		m.callDuration.WithLabelValues(string(op))
		for _, reason := range keyvault.Reasons() {
			m.calls.WithLabelValues(string(op), string(reason))
		}
	}
	f.NewGaugeVec(prometheus.GaugeOpts{
		Name: "build_info",
		Help: "Always 1; the labels describe this program.",
	}, []string{"version", "revision", "go_version", "fips140"}).
		WithLabelValues(cfg.Build.Version, cfg.Build.Revision, cfg.Build.GoVersion, cfg.Build.FIPS140).Set(1)
	ours.MustRegister(newCurrent(cfg))
	if cfg.DroppedLogLines != nil {
		f.NewCounterFunc(prometheus.CounterOpts{
			Name: "log_lines_dropped_total",
			Help: "Log lines left out because the same line came too often.",
		}, func() float64 { return float64(cfg.DroppedLogLines()) })
	}
	return m
}

// Writes notes that keyID is the one under which new data is written from now on.
func (m *Metrics) Writes(keyID string) {
	hash := m.keep(keyID)
	m.writing.Lock()
	defer m.writing.Unlock()
	if m.writer != "" {
		m.writes.WithLabelValues(m.writer).Set(0)
	}
	m.writes.WithLabelValues(hash).Set(1)
	m.writer = hash
}

// Request counts a KMS request. keyID is one that the keyring knows, or empty.
func (m *Metrics) Request(operation, keyID string, reason keyvault.Reason, took time.Duration) {
	m.requests.WithLabelValues(operation, m.label(keyID, reason == keyvault.Success), string(reason)).Inc()
	m.requestDuration.WithLabelValues(operation).Observe(took.Seconds())
}

// Call counts an HTTP exchange with the vault.
func (m *Metrics) Call(c keyvault.Call) {
	m.calls.WithLabelValues(string(c.Op), string(c.Reason)).Inc()
	m.callDuration.WithLabelValues(string(c.Op)).Observe(c.Took.Seconds())
}

// label returns the label value of a key ID, which the vault has just used if it is
// proven, and sees to it that its series exist while there is room.
func (m *Metrics) label(keyID string, proven bool) string {
	if keyID == "" {
		return unknownKeyID
	}
	m.mu.RLock()
	hash, ok := m.hashes[keyID]
	m.mu.RUnlock()
	if ok {
		return hash
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if hash, ok := m.hashes[keyID]; ok {
		return hash
	}
	count, limit := &m.unproven, maxUnproven
	if proven {
		count, limit = &m.proven, maxKeyIDs
	}
	if *count >= limit {
		return unknownKeyID
	}
	*count++
	return m.add(keyID)
}

// keep is label for an ID that is ours, whatever room there is.
func (m *Metrics) keep(keyID string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if hash, ok := m.hashes[keyID]; ok {
		return hash
	}
	return m.add(keyID)
}

// add makes the series of a key ID. The caller holds mu.
func (m *Metrics) add(keyID string) string {
	hash := keyvault.KeyIDHash(keyID)
	m.hashes[keyID] = hash
	m.expose(hash)
	return hash
}

func (m *Metrics) expose(hash string) {
	for _, op := range m.operations {
		for _, reason := range keyvault.Reasons() {
			m.requests.WithLabelValues(op, hash, string(reason))
		}
	}
}
