"""The ledger's tables. The migrations create them; a test checks that both define the same schema."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, LargeBinary, MetaData, Table, Text

metadata = MetaData()

# Ids compare byte by byte in both databases. So rows are locked, and ranges read, in the same order everywhere.
Id = Text().with_variant(Text(collation="C"), "postgresql")

# sqlite_with_rowid=False stores rows in the primary key's tree, which saves a second look-up of small rows.

meta = Table(
    "meta",
    metadata,
    Column("name", Id, primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_with_rowid=False,
)

# Texts are in `bodies`, because every citation updates the cited paper's row and should not rewrite its texts.
papers = Table(
    "papers",
    metadata,
    Column("id", Id, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("retracted", Boolean, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("body_revision", BigInteger, nullable=False),
    Column("text_key", LargeBinary, nullable=False),
    Column("last_event", Text, nullable=False),
    sqlite_with_rowid=False,
)

# The newest publication of each paper as a citewell.types.v1.Publication without its vectors.
bodies = Table(
    "bodies",
    metadata,
    Column("paper_id", Id, primary_key=True),
    Column("publication", LargeBinary, nullable=False),
)

claims = Table(
    "claims",
    metadata,
    Column("alias", Id, primary_key=True),
    Column("paper_id", Id, primary_key=True),
    sqlite_with_rowid=False,
)

# text_key is a SHA-256 digest, context_keys several concatenated. An edge without a text_key is removed.
edges = Table(
    "edges",
    metadata,
    Column("citing", Id, primary_key=True),
    Column("cited", Id, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("present", Boolean, nullable=False),
    Column("year", Integer, nullable=False),
    Column("day", Integer, nullable=False),
    Column("text_key", LargeBinary, nullable=False),
    Column("context_keys", LargeBinary, nullable=False),
    Column("gone_keys", LargeBinary, nullable=False),
    Index("edges_by_cited", "cited", "year"),
    sqlite_with_rowid=False,
)

models = Table(
    "models",
    metadata,
    Column("hash", Id, primary_key=True),
    Column("name", Text, nullable=False),
    Column("dimension", Integer, nullable=False),
    Column("state", Text, nullable=False),
    # While sums are built: papers up to this id have their sums.
    Column("summed_to", Id, nullable=False),
    sqlite_with_rowid=False,
)

# Vectors in fixed point, as little-endian 32-bit integers. The first writer wins; rows are never changed.
text_vectors = Table(
    "text_vectors",
    metadata,
    Column("model", Id, primary_key=True),
    Column("text_key", LargeBinary, primary_key=True),
    Column("vector", LargeBinary, nullable=False),
)

# The year of rows that hold the sum over all years.
EVERY_YEAR = -1

# Sums of vectors in fixed point, as little-endian 64-bit integers, by citing year. A paper cited in more than one year
# also has a row EVERY_YEAR, so the row of the smallest year always holds the sum over all years.
year_sums = Table(
    "year_sums",
    metadata,
    Column("model", Id, primary_key=True),
    Column("cited", Id, primary_key=True),
    Column("year", Integer, primary_key=True),
    Column("contexts", LargeBinary, nullable=False),
    Column("contents", LargeBinary, nullable=False),
    Column("count", BigInteger, nullable=False),
)

# The name of the rules by which the ledger counts words (`scholarly.words.LEXICON`). There is one row. If the rules
# change, all words are counted again.
lexicons = Table(
    "lexicons",
    metadata,
    Column("name", Id, primary_key=True),
    Column("state", Text, nullable=False),
    # While words are counted: papers up to this id are counted.
    Column("counted_to", Id, nullable=False),
    sqlite_with_rowid=False,
)

# Term ids (uint32, ascending) and their counts (uint16) in title and body, little-endian. A context has no title. The
# first writer wins; rows are never changed.
text_terms = Table(
    "text_terms",
    metadata,
    Column("text_key", LargeBinary, primary_key=True),
    Column("terms", LargeBinary, nullable=False),
    Column("title", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

# Counts of the terms in the contexts that cite a paper, by citing year and for EVERY_YEAR. The counts are the sum
# of the runs. Term ids (uint32, ascending) and signed counts (int32), little-endian.
said_terms = Table(
    "said_terms",
    metadata,
    Column("cited", Id, primary_key=True),
    Column("year", Integer, primary_key=True),
    Column("run", Integer, primary_key=True),
    Column("size", Integer, nullable=False),
    Column("terms", LargeBinary, nullable=False),
    Column("counts", LargeBinary, nullable=False),
)

# Document frequency of each term (int32), for views of these rules. Year -1 counts all words of all papers; the other
# years count only the own texts of the papers published then. length is the sum over these papers.
statistics = Table(
    "statistics",
    metadata,
    Column("rules", Id, primary_key=True),
    Column("year", Integer, primary_key=True),
    Column("version", Text, nullable=False),
    Column("papers", BigInteger, nullable=False),
    Column("citations", BigInteger, nullable=False),
    Column("length", Double, nullable=False),
    Column("terms", LargeBinary, nullable=False),
    Column("frequencies", LargeBinary, nullable=False),
)

views = Table(
    "views",
    metadata,
    Column("name", Id, primary_key=True),
    Column("model", Id, nullable=False),
    Column("alpha", Double, nullable=False),
    Column("beta", Double, nullable=False),
    Column("epoch", Text, nullable=False),
    Column("serving", Boolean, nullable=False),
    # False: nothing is projected into the view any more, because it belongs to an older epoch or is being dropped.
    Column("projected", Boolean, nullable=False),
    # Whether to serve the view as soon as it is complete.
    Column("switch_when_complete", Boolean, nullable=False),
    Column("request_id", Text, nullable=False),
    # A sequence number: views are listed in the order of their registration.
    Column("created", BigInteger, nullable=False),
    # The rules of the view's bags of words. An empty lexicon means no bags (a view of schema 0001).
    Column("lexicon", Text, nullable=False, server_default=""),
    Column("title_weight", Double, nullable=False, server_default="0"),
    Column("abstract_weight", Double, nullable=False, server_default="0"),
    Column("context_weight", Double, nullable=False, server_default="0"),
    Column("max_terms", Integer, nullable=False, server_default="0"),
    # The name of the rules that cut spans from contexts.
    Column("extractor", Text, nullable=False, server_default="whole-context/1"),
    sqlite_with_rowid=False,
)

marks = Table(
    "marks",
    metadata,
    Column("view", Id, primary_key=True),
    Column("kind", Id, primary_key=True),
    Column("object", Id, primary_key=True),
    Column("version", BigInteger, primary_key=True),
    # The event that made the mark; empty if a rebuild, a refill or a repair made it.
    Column("event", Id, nullable=False),
    # Whether a load, a rebuild or a repair made the mark. Marks of single events are projected first.
    Column("bulk", Boolean, nullable=False),
    Index("marks_by_event", "view", "event"),
    Index("marks_in_turn", "view", "bulk", "kind", "object"),
    sqlite_with_rowid=False,
)

# Papers with a text that the model has not encoded yet.
encode_marks = Table(
    "encode_marks",
    metadata,
    Column("model", Id, primary_key=True),
    Column("paper_id", Id, primary_key=True),
    sqlite_with_rowid=False,
)

events = Table(
    "events",
    metadata,
    Column("event_id", Id, primary_key=True),
    Column("outcome", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("message", Text, nullable=False),
    # The event whose marks must be gone before this event is searchable: itself, or the last one applied to the paper.
    Column("effect", Id, nullable=False),
    Index("events_by_effect", "effect"),
    sqlite_with_rowid=False,
)

sources = Table(
    "sources",
    metadata,
    Column("log_id", Id, primary_key=True),
    Column("log_partition", Integer, primary_key=True),
    Column("log_offset", BigInteger, primary_key=True),
    Column("event_id", Id, nullable=False),
    Index("sources_by_event", "event_id"),
    sqlite_with_rowid=False,
)

# Every offset below `applied` is in `sources`.
positions = Table(
    "positions",
    metadata,
    Column("log_id", Id, primary_key=True),
    Column("log_partition", Integer, primary_key=True),
    Column("applied", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
