// Package vault stands in for Azure Key Vault, Managed HSM, the sign-in
// endpoint and the instance metadata service, on the loopback, with real RSA.
//
// [Start] with a zero [Config] serves; [Server.Vault] or [Server.HSM] makes a
// vault, [Vault.CreateKey] a key. A client in this process uses
// [Server.Transport]; an unmodified program gets [Server.Env] and, if it reads
// one, [Server.AzureJSON]. Both then use the service's real names: the
// transport and the proxy lead them here and everything else nowhere
// ([Server.Refused]). Host names choose the vault; whoever dials
// [Server.Addr] itself gets the only one there is. [Server.ProxyURL] is also the
// forwarding service of the existing plugins' proxy mode, for requests with its
// header.
//
// # Faithfulness
//
// Status, codes, inner codes, texts and the shape of each answer follow
// recorded answers of the service. Calls are checked in its order: token,
// firewall, permission, key. Where reports of the service disagree, [Config]
// has a switch. How late replicas of a vault learn of a new version and how wrong
// its clock is are for a test to say ([Vault.SetReplication],
// [Vault.SetClockSkew]). Not confirmed by any recording are: the inner code
// KeyNotYetValid, the text for an expired token and for bad PKCS #1 padding,
// and what a Managed HSM says about a key that is missing or disabled; a test
// should not depend on them.
//
// What is emulated: create, import, update, rotate, get, list keys and
// versions, encrypt, decrypt, wrapkey, unwrapkey with RSA-OAEP-256, RSA-OAEP
// and RSA1_5, delete, deletedkeys, recover, purge, /healthstatus; tokens for a
// client secret, a signed (x5t, x5c) or federated assertion (v1 and v2
// endpoints), managed identities by the metadata service and in the style of
// App Service ([Server.IdentityEnv]), and those of an identity file
// ([Server.IdentityFile]) at a region's token endpoint. Each cloud's token
// endpoints know the audiences of that cloud alone. Rotation policies, backups and other key types are not.
//
// # Faults
//
// [Server.AddFault] makes calls or connections fail. A call without a token is
// [OpChallenge], whatever it asks for, so that a count of faults is not used
// up by the first half of a client's first call. A fault of connections for a
// single host can only be played where the name is still known: by the
// transport, by the proxy, and by the listener once it has read the name. A
// program without a proxy that shall not find a name needs a resolver of its
// own. Through the transport, a dial that began under Drop ends with its own
// time-out even if the fault is removed before.
//
// # Admin API
//
// [Server.AdminURL] offers the same over HTTP. Bodies and answers are JSON,
// durations text such as "1.5s", times RFC 3339. A host may be a vault's bare
// name. Errors are 400 or 404 with {"error": "..."}.
//
//	GET    /                                          addresses, environment, vaults, time
//	POST   /vaults/HOST                               make a vault or Managed HSM
//	PATCH  /vaults/HOST                               {"access","network","tenant","lag","alternate","clockSkew"}
//	DELETE /vaults/HOST                               its name is gone
//	PUT    /vaults/HOST/access/CLIENT_ID              ["get","decrypt","wrapKey",...], in any case
//	GET    /vaults/HOST/keys/NAME                     the versions, oldest first
//	POST   /vaults/HOST/keys/NAME                     new version: {"bits","version","pem","enabled","notBefore","expires","created","ops"}
//	PATCH  /vaults/HOST/keys/NAME/VERSION             {"enabled","notBefore","expires","ops"}; VERSION may be "current"
//	POST   /vaults/HOST/keys/NAME/delete|recover|purge
//	GET    /faults                                    by ID
//	POST   /faults                                    a Fault, its fields in camelCase; answers {"id"}
//	DELETE /faults, /faults/ID
//	GET    /calls                                     counts of calls, connections, tokens, refused hosts
//	DELETE /calls
//	GET    /requests                                  the last requests, oldest first
//	POST   /principals                                {"clientId","tenantId","secrets","assertions","certificatesPem"}
//	PUT    /identities                                [{"clientId","objectId","resourceId","system"}]
//	POST   /identities/CLIENT_ID/file                 {"host","notBefore","life"}; answers the identity file
//	POST   /tokens/revoke                             {"principal"}; all without it
//	PUT    /tokens/lifetime                           {"lifetime"}
//	POST   /clock                                     {"advance"}
//	GET    /identity/token                            App Service's identity endpoint
//
// # Concurrency
//
// Everything is safe for concurrent use. No lock is held during cryptography.
//
// # Failure
//
// Wrong use in Go panics where no error is returned; over HTTP it is a 400.
//
// # Secrets
//
// Nothing here protects anything: keys and secrets live in memory and are good
// for nothing else. Requests are remembered without bodies and headers.
package vault
