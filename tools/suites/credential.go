// Package credential, in place of the one that signs in with Entra: a token signed with the namespace's key.
// tools/suites/go.py puts it in the place of theirs.
package credential

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
)

const life = time.Hour

type NewOptions struct{}

func New(*NewOptions) (azcore.TokenCredential, error) {
	return &Key{os.Getenv("SPILLWAY_SUITE_KEY_NAME"), os.Getenv("SPILLWAY_SUITE_KEY")}, nil
}

type Key struct {
	name string
	key  string
}

func (k *Key) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	ends := time.Now().Add(life)
	resource := url.QueryEscape(os.Getenv("SERVICEBUS_ENDPOINT"))
	mac := hmac.New(sha256.New, []byte(k.key))
	fmt.Fprintf(mac, "%s\n%d", resource, ends.Unix())
	signature := url.QueryEscape(base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	text := fmt.Sprintf("SharedAccessSignature sr=%s&sig=%s&se=%d&skn=%s", resource, signature, ends.Unix(), k.name)
	return azcore.AccessToken{Token: text, ExpiresOn: ends}, nil
}

type Fake struct{}

func (Fake) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "fake", ExpiresOn: time.Now().Add(life)}, nil
}
