// A Go service that appends to the log's topic itself, without Publish: a paper, a retraction, and records that break the rules.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/proto"

	types "citewell.test/client/gen/citewell/types/v1"
)

func main() {
	log.SetFlags(0)
	// franz-go's defaults are what the log wants: idempotent, acks of all in-sync replicas, murmur2 of the key.
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Getenv("CITEWELL_BROKER")),
		kgo.DefaultProduceTopic(os.Getenv("CITEWELL_TOPIC")),
		kgo.ProducerBatchMaxBytes(9<<20),
		kgo.RecordDeliveryTimeout(30*time.Second),
	)
	check(err)
	defer client.Close()

	paper := &types.Publication{
		PaperId: "straight-to-kafka", Revision: 1, Title: "Badgers that dig straight into the log",
		Published: &types.PartialDate{Year: 2024, Month: 3},
	}
	deliver(client, paper.PaperId, encoded(paper))
	deliver(client, paper.PaperId, encoded(paper)) // repeating changes nothing
	deliver(client, "garbage", []byte("this is no event"))
	deliver(client, "nameless", encoded(&types.Publication{Revision: 1, Title: "A paper without an id"}))
	deliver(client, "too-large", encoded(&types.Publication{PaperId: "too-large", Revision: 1, Title: strings.Repeat("a", 8<<20)}))
}

func encoded(paper *types.Publication) []byte {
	event := &types.PublicationEvent{
		EventId: fmt.Sprintf("%s-%d", paper.PaperId, paper.Revision),
		Body:    &types.PublicationEvent_Publication{Publication: paper},
	}
	value, err := proto.Marshal(event)
	check(err)
	return value
}

// deliver prints where the record lies.
func deliver(client *kgo.Client, key string, value []byte) {
	header := kgo.RecordHeader{Key: "traceparent", Value: []byte(os.Getenv("CITEWELL_TRACEPARENT"))}
	record := &kgo.Record{Key: []byte(key), Value: value, Headers: []kgo.RecordHeader{header}}
	done, err := client.ProduceSync(context.Background(), record).First()
	check(err)
	fmt.Println(key, done.Partition, done.Offset)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
