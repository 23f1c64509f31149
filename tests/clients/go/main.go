// A Go back end that asks and publishes: deadlines, error details, batches, reading its own writes, retries, TLS.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	ingestion "citewell.test/client/gen/citewell/ingestion/v1"
	recommender "citewell.test/client/gen/citewell/recommender/v1"
	types "citewell.test/client/gen/citewell/types/v1"
)

const sentence = "We follow TARGETCIT for the recommendation of local citations."

// refusal is what a program reads of an error instead of its text.
type refusal struct {
	code   codes.Code
	reason string
	field  string
	retry  time.Duration
}

func refusalOf(err error) refusal {
	told := refusal{code: status.Code(err)}
	for _, detail := range status.Convert(err).Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			told.reason = detail.Reason
		case *errdetails.BadRequest:
			told.field = detail.FieldViolations[0].Field
		case *errdetails.RetryInfo:
			told.retry = detail.RetryDelay.AsDuration()
		}
	}
	return told
}

func open(address string, secure bool) *grpc.ClientConn {
	config, err := os.ReadFile(os.Getenv("CITEWELL_SERVICE_CONFIG"))
	check(err)
	options := []grpc.DialOption{
		grpc.WithDefaultServiceConfig(string(config)),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	}
	if secure {
		authorities := x509.NewCertPool()
		pem, err := os.ReadFile(os.Getenv("CITEWELL_CA"))
		check(err)
		authorities.AppendCertsFromPEM(pem)
		options = append(options,
			grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: authorities})),
			grpc.WithPerRPCCredentials(bearer(os.Getenv("CITEWELL_TOKEN"))))
	}
	connection, err := grpc.NewClient(address, options...)
	check(err)
	return connection
}

// bearer is a token that goes with every call, and only over TLS.
type bearer string

func (token bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(token)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

// within is a context with a deadline; every call here ends by it.
func within(seconds float64) context.Context {
	deadline, cancel := context.WithTimeout(context.Background(), time.Duration(seconds*float64(time.Second)))
	context.AfterFunc(deadline, cancel)
	return deadline
}

func ask(text string) *recommender.RecommendRequest {
	return &recommender.RecommendRequest{Query: &recommender.Query{Context: text}}
}

func main() {
	log.SetFlags(0)
	plain := open(os.Getenv("CITEWELL_RECOMMENDER"), false)
	service := recommender.NewRecommenderServiceClient(plain)

	answer, err := service.Recommend(within(30), ask(sentence))
	check(err)
	again, err := service.Recommend(within(30), ask(sentence))
	check(err)
	require(len(answer.Items) == 10, "ten items: %v", answer.Items)
	require(answer.Items[0].Paper.Id == again.Items[0].Paper.Id, "the same id twice")
	passed("recommend")

	_, err = service.Recommend(within(0.001), ask(sentence))
	require(status.Code(err) == codes.DeadlineExceeded, "DEADLINE_EXCEEDED: %v", err)
	passed("deadline")

	_, err = service.Recommend(within(30), ask("A sentence without a marker."))
	told := refusalOf(err)
	require(told.code == codes.InvalidArgument && told.reason == "MARKER_COUNT" && told.field == "query.context", "%+v", told)
	passed("error details")

	batch, err := service.RecommendBatch(within(30), &recommender.RecommendBatchRequest{
		Requests: []*recommender.RecommendRequest{ask(sentence), ask("No marker.")},
	})
	check(err)
	require(len(batch.Results[0].GetResponse().GetItems()) == 10, "a batch's first: %v", batch)
	require(batch.Results[1].GetError().GetReason() == "MARKER_COUNT", "a batch's second: %v", batch)
	passed("batch")

	retry := flood(open(os.Getenv("CITEWELL_BUSY"), false))
	require(retry > 0, "RetryInfo says when to come again")
	passed("retry info")

	publish()
	passed("read your writes")

	_, err = recommender.NewRecommenderServiceClient(open(os.Getenv("CITEWELL_REFUSING"), false)).Recommend(within(30), ask(sentence))
	check(err)
	passed("retry config")

	_, err = recommender.NewRecommenderServiceClient(open(os.Getenv("CITEWELL_SECURE"), true)).Recommend(within(30), ask(sentence))
	check(err)
	passed("tls and token")
}

// flood sends calls at once to a server that takes one; the longest time that a refusal names.
func flood(connection *grpc.ClientConn) time.Duration {
	var group sync.WaitGroup
	delays := make(chan time.Duration, 16)
	for range cap(delays) {
		group.Go(func() {
			_, err := recommender.NewRecommenderServiceClient(connection).Recommend(within(30), ask(sentence))
			if told := refusalOf(err); told.code == codes.ResourceExhausted {
				delays <- told.retry
			}
		})
	}
	group.Wait()
	close(delays)
	longest := time.Duration(0)
	for delay := range delays {
		longest = max(longest, delay)
	}
	return longest
}

// publish tells of a paper; an answer with its token has it.
func publish() {
	log := ingestion.NewIngestionServiceClient(open(os.Getenv("CITEWELL_INGESTION"), false))
	paper := &types.Publication{
		PaperId: "go-client-paper", Revision: 1, Title: "Gophers that burrow beneath citation graphs",
		Published: &types.PartialDate{Year: 2024, Month: 2},
	}
	accepted, err := log.Publish(within(30), &ingestion.PublishRequest{
		Body: &ingestion.PublishRequest_Publication{Publication: paper},
	})
	check(err)
	state, err := log.GetPublicationStatus(within(60), &ingestion.GetPublicationStatusRequest{Token: accepted.Token, Wait: true})
	check(err)
	require(state.State == ingestion.PublicationState_PUBLICATION_STATE_SEARCHABLE, "searchable: %v", state)
	request := ask("Gophers burrow beneath citation graphs TARGETCIT.")
	request.Options = &recommender.Options{MinWatermark: []string{accepted.Token}}
	answer, err := recommender.NewRecommenderServiceClient(open(os.Getenv("CITEWELL_RECOMMENDER"), false)).Recommend(within(30), request)
	check(err)
	require(answer.Items[0].Paper.Id == paper.PaperId, "what was just published: %v", answer.Items[0])
}

func passed(what string) { fmt.Println("ok", what) }

func require(holds bool, format string, values ...any) {
	if !holds {
		log.Fatalf("not so: "+format, values...)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
