package citewell.client;

import citewell.ingestion.v1.GetPublicationStatusRequest;
import citewell.ingestion.v1.IngestionServiceGrpc;
import citewell.ingestion.v1.PublicationState;
import citewell.ingestion.v1.PublishRequest;
import citewell.recommender.v1.Options;
import citewell.recommender.v1.Query;
import citewell.recommender.v1.RecommendBatchRequest;
import citewell.recommender.v1.RecommendRequest;
import citewell.recommender.v1.RecommenderServiceGrpc;
import citewell.types.v1.PartialDate;
import citewell.types.v1.Publication;
import com.google.gson.Gson;
import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.CallCredentials;
import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.protobuf.StatusProto;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/** A Java back end that asks and publishes: deadlines, error details, batches, reading its own writes, retries, TLS. */
public final class Client {
  private static final String SENTENCE = "We follow TARGETCIT for the recommendation of local citations.";
  private static final List<ManagedChannel> CHANNELS = new ArrayList<>();

  /** What a program reads of an error instead of its text. */
  private record Refusal(Status.Code code, String reason, String field, double retrySeconds) {
    static Refusal of(StatusRuntimeException error) {
      String reason = "";
      String field = "";
      double retry = 0;
      try {
        for (Any detail : StatusProto.fromThrowable(error).getDetailsList()) {
          if (detail.is(ErrorInfo.class)) {
            reason = detail.unpack(ErrorInfo.class).getReason();
          } else if (detail.is(BadRequest.class)) {
            field = detail.unpack(BadRequest.class).getFieldViolations(0).getField();
          } else if (detail.is(RetryInfo.class)) {
            var delay = detail.unpack(RetryInfo.class).getRetryDelay();
            retry = delay.getSeconds() + delay.getNanos() / 1e9;
          }
        }
      } catch (InvalidProtocolBufferException broken) {
        throw new IllegalStateException("an error detail that cannot be read", broken);
      }
      return new Refusal(error.getStatus().getCode(), reason, field, retry);
    }
  }

  /** A token that goes with every call. */
  private static final class Bearer extends CallCredentials {
    @Override
    public void applyRequestMetadata(RequestInfo call, Executor executor, MetadataApplier applier) {
      Metadata headers = new Metadata();
      var name = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
      headers.put(name, "Bearer " + System.getenv("CITEWELL_TOKEN"));
      applier.apply(headers);
    }
  }

  private static ManagedChannel open(String variable, ChannelCredentials credentials) throws IOException {
    String config = Files.readString(Path.of(System.getenv("CITEWELL_SERVICE_CONFIG")));
    @SuppressWarnings("unchecked")
    Map<String, ?> serviceConfig = new Gson().fromJson(config, Map.class);
    ManagedChannel channel =
        Grpc.newChannelBuilder(System.getenv(variable), credentials)
            .defaultServiceConfig(serviceConfig)
            .enableRetry()
            .build();
    CHANNELS.add(channel);
    return channel;
  }

  private static RecommenderServiceGrpc.RecommenderServiceBlockingStub recommender(String variable)
      throws IOException {
    return RecommenderServiceGrpc.newBlockingStub(open(variable, InsecureChannelCredentials.create()));
  }

  private static RecommendRequest ask(String context) {
    return RecommendRequest.newBuilder().setQuery(Query.newBuilder().setContext(context)).build();
  }

  private static Refusal refused(Runnable call) {
    try {
      call.run();
    } catch (StatusRuntimeException error) {
      return Refusal.of(error);
    }
    throw new AssertionError("the call was not refused");
  }

  private static void require(boolean holds, Object found) {
    if (!holds) {
      throw new AssertionError("not so: " + found);
    }
  }

  private static void passed(String what) {
    System.out.println("ok " + what);
  }

  /** Sends calls at once to a server that takes one; the longest time that a refusal names. */
  private static double flood() throws IOException {
    var busy = recommender("CITEWELL_BUSY");
    List<Thread> threads = new ArrayList<>();
    List<Double> delays = java.util.Collections.synchronizedList(new ArrayList<>());
    IntStream.range(0, 16)
        .forEach(
            number -> {
              Thread thread =
                  new Thread(
                      () -> {
                        try {
                          busy.withDeadlineAfter(30, TimeUnit.SECONDS).recommend(ask(SENTENCE));
                        } catch (StatusRuntimeException error) {
                          Refusal told = Refusal.of(error);
                          if (told.code() == Status.Code.RESOURCE_EXHAUSTED) {
                            delays.add(told.retrySeconds());
                          }
                        }
                      });
              thread.start();
              threads.add(thread);
            });
    for (Thread thread : threads) {
      try {
        thread.join();
      } catch (InterruptedException interrupted) {
        throw new IllegalStateException(interrupted);
      }
    }
    return delays.stream().mapToDouble(Double::doubleValue).max().orElse(0);
  }

  /** Publishes a paper; an answer with its token has it. */
  private static void publish(RecommenderServiceGrpc.RecommenderServiceBlockingStub service) throws IOException {
    var log = IngestionServiceGrpc.newBlockingStub(open("CITEWELL_INGESTION", InsecureChannelCredentials.create()));
    Publication paper =
        Publication.newBuilder()
            .setPaperId("java-client-paper")
            .setRevision(1)
            .setTitle("Kettles that brew strong citation blends")
            .setPublished(PartialDate.newBuilder().setYear(2024).setMonth(2))
            .build();
    String token =
        log.withDeadlineAfter(30, TimeUnit.SECONDS)
            .publish(PublishRequest.newBuilder().setPublication(paper).build())
            .getToken();
    var status =
        log.withDeadlineAfter(60, TimeUnit.SECONDS)
            .getPublicationStatus(GetPublicationStatusRequest.newBuilder().setToken(token).setWait(true).build());
    require(status.getState() == PublicationState.PUBLICATION_STATE_SEARCHABLE, status);
    RecommendRequest request =
        ask("Kettles brew strong citation blends TARGETCIT.").toBuilder()
            .setOptions(Options.newBuilder().addMinWatermark(token))
            .build();
    var answer = service.withDeadlineAfter(30, TimeUnit.SECONDS).recommend(request);
    require(answer.getItems(0).getPaper().getId().equals(paper.getPaperId()), answer.getItems(0));
  }

  private static void run() throws IOException {
    var service = recommender("CITEWELL_RECOMMENDER");

    var answer = service.withDeadlineAfter(30, TimeUnit.SECONDS).recommend(ask(SENTENCE));
    var again = service.withDeadlineAfter(30, TimeUnit.SECONDS).recommend(ask(SENTENCE));
    require(answer.getItemsCount() == 10, answer);
    require(answer.getItems(0).getPaper().getId().equals(again.getItems(0).getPaper().getId()), again);
    passed("recommend");

    Refusal late = refused(() -> service.withDeadlineAfter(1, TimeUnit.MILLISECONDS).recommend(ask(SENTENCE)));
    require(late.code() == Status.Code.DEADLINE_EXCEEDED, late);
    passed("deadline");

    Refusal wrong =
        refused(() -> service.withDeadlineAfter(30, TimeUnit.SECONDS).recommend(ask("No marker here.")));
    require(wrong.code() == Status.Code.INVALID_ARGUMENT, wrong);
    require(wrong.reason().equals("MARKER_COUNT") && wrong.field().equals("query.context"), wrong);
    passed("error details");

    var requests = RecommendBatchRequest.newBuilder().addRequests(ask(SENTENCE)).addRequests(ask("No marker."));
    var batch = service.withDeadlineAfter(30, TimeUnit.SECONDS).recommendBatch(requests.build());
    require(batch.getResults(0).getResponse().getItemsCount() == 10, batch);
    require(batch.getResults(1).getError().getReason().equals("MARKER_COUNT"), batch);
    passed("batch");

    require(flood() > 0, "RetryInfo says when to come again");
    passed("retry info");

    publish(service);
    passed("read your writes");

    recommender("CITEWELL_REFUSING").withDeadlineAfter(30, TimeUnit.SECONDS).recommend(ask(SENTENCE));
    passed("retry config");

    var trusted = TlsChannelCredentials.newBuilder().trustManager(new File(System.getenv("CITEWELL_CA"))).build();
    RecommenderServiceGrpc.newBlockingStub(open("CITEWELL_SECURE", trusted))
        .withCallCredentials(new Bearer())
        .withDeadlineAfter(30, TimeUnit.SECONDS)
        .recommend(ask(SENTENCE));
    passed("tls and token");
  }

  public static void main(String[] arguments) throws IOException {
    try {
      run();
    } finally {
      CHANNELS.forEach(ManagedChannel::shutdownNow);
    }
  }
}
