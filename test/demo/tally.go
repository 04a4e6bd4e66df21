package main

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"azure-kms-plugin/test/stack"
)

// tellVersions counts the secrets in etcd by the key version that they are
// under, and fails unless the counts are these. The note is about the next one's.
func (s *scene) tellVersions(ctx context.Context, old, next int, note string) error {
	counts, err := s.tally(ctx)
	if err != nil {
		return err
	}
	name := "in etcd"
	for _, v := range []struct {
		version string
		want    int
		note    string
	}{{s.version, old, ""}, {s.next, next, note}} {
		n := counts[stack.KeyID(vaultName, keyName, v.version)]
		delete(counts, stack.KeyID(vaultName, keyName, v.version))
		if n != v.want {
			return fmt.Errorf("%s secrets in etcd are under version %s, not %s", thousands(n), v.version, thousands(v.want))
		}
		s.term.item(name, "%7s under version %s%s", thousands(n), v.version, v.note)
		name = ""
	}
	for id, n := range counts {
		return fmt.Errorf("%s secrets in etcd are under the unknown key ID %s", thousands(n), id)
	}
	return nil
}

// tally reads every secret of the demo and the canary from etcd, without
// decrypting it, and counts them by key ID.
func (s *scene) tally(ctx context.Context) (map[string]int, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.etcd.URL}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("connecting to etcd: %w", err)
	}
	defer client.Close()
	const prefix = "/registry/secrets/" + namespace + "/"
	counts := map[string]int{}
	for from, more := prefix, true; more; {
		page, err := client.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(1000))
		if err != nil {
			return nil, fmt.Errorf("reading from etcd: %w", err)
		}
		for _, kv := range page.Kvs {
			stored, err := stack.ParseStored(kv.Value)
			if err != nil {
				return nil, fmt.Errorf("reading %s: %w", kv.Key, err)
			}
			counts[stored.KeyID]++
			from = string(kv.Key) + "\x00" // the next key there can be
		}
		more = page.More
	}
	return counts, nil
}
