/* pager_kept.h: what checkpoints need of a durable store. Included by each of the test_pager_<method>.c files, after
 * pager_durable.h. */

Test(pager, a_generation_taken_back_was_never_there_and_the_content_stays)
{
    const void *blob;
    uint64_t n, list[4];
    uint32_t count = 0;
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);

        MUST_FAIL(HAUL_E_STATE, hl_store_take_back(s));
        MUST(haul_extent_create(s, 1, SIZE));
        put_all(s, SIZE, 1);
        MUST(haul_store_commit(s, 1, "one", 3));
        cr_assert_eq(hl_store_unchanged(s), 1);
        put_all(s, SIZE, 2);
        cr_assert_eq(hl_store_unchanged(s), 0);
        MUST(haul_store_prepare(s, 2, "two", 3));
        MUST(hl_store_take_back(s));
        MUST(haul_store_generations(dir, list, 4, &count));
        cr_assert(count == 1 && list[0] == 1);
        cr_assert_eq(haul_store_generation(s, NULL, NULL), 1);
        cr_assert(holds(s, SIZE, 2));
        cr_assert_eq(hl_store_unchanged(s), 0);
        put_all(s, SIZE, 3); /* there is a slot again */
        MUST(haul_store_prepare(s, 2, "two again", 9));
        MUST(hl_store_release_older(s));
        MUST(hl_store_release_older(s)); /* there is none */
        put_all(s, SIZE, 4);
        haul_store_close(s);
        s = durable(dir, HAUL_LATEST);
        cr_assert_eq(haul_store_generation(s, &blob, &n), 2);
        cr_assert(n == 9 && !memcmp(blob, "two again", 9));
        cr_assert(holds(s, SIZE, 3));
        cr_assert_eq(hl_store_unchanged(s), 1);
        haul_store_close(s);
    }
}

Test(pager, killed_after_it_was_prepared_the_one_before_can_be_opened)
{
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);
        void *notes;
        uint64_t bytes;

        MUST(haul_extent_create(s, 1, SIZE));
        put_all(s, SIZE, 1);
        MUST(haul_store_commit(s, 1, "one", 3));
        put_all(s, SIZE, 2);
        MUST(haul_store_prepare(s, 2, "two", 3));
        haul_store_close(s);
        MUST(hl_store_notes(dir, 2, &notes, &bytes));
        cr_assert(bytes == 3 && !memcmp(notes, "two", 3));
        hl_sys_free(notes);
        MUST_FAIL(-ENOENT, hl_store_notes(dir, 3, &notes, &bytes));
        s = durable(dir, 1);
        cr_assert(holds(s, SIZE, 1));
        put_all(s, SIZE, 3);
        haul_store_close(s);
    }
}

Test(pager, an_extent_that_passes_is_in_no_generation_and_in_the_way_of_none)
{
    uint64_t size;
    char dir[128];

    FOR_EACH_PLACE(dir)
    {
        struct haul_store *s = durable(dir, HAUL_LATEST);
        unsigned char *m = memory(2 * BLK);

        MUST(haul_extent_create(s, 1, SIZE));
        MUST(hl_extent_create_passing(s, 2, 2 * BLK));
        MUST_FAIL(-EEXIST, hl_extent_create_passing(s, 1, BLK));
        put_all(s, SIZE, 1);
        fill(m, 0, 2 * BLK, 7);
        MUST(haul_store_write(s, 2, 0, m, 2 * BLK));
        MUST(haul_store_prepare(s, 1, NULL, 0));
        MUST(haul_store_prepare(s, 2, NULL, 0));
        fill(m, 0, 2 * BLK, 8);
        MUST(haul_store_write(s, 2, 0, m, 2 * BLK)); /* while both slots of extent 1 are needed */
        memset(m, 0, 2 * BLK);
        MUST(haul_store_read(s, 2, 0, m, 2 * BLK));
        cr_assert(filled(m, 0, 2 * BLK, 8));
        MUST(hl_store_release_older(s));
        cr_assert_eq(hl_store_unchanged(s), 1, "what passes does not count");
        haul_store_close(s);
        s = durable(dir, HAUL_LATEST);
        cr_assert(holds(s, SIZE, 1));
        MUST_FAIL(-ENOENT, haul_extent_size(s, 2, &size));
        MUST(hl_extent_create_passing(s, 2, 2 * BLK)); /* its place is free again */
        MUST(haul_store_write(s, 2, 0, m, 2 * BLK));
        cr_assert(holds(s, SIZE, 1));
        haul_store_close(s);
        free(m);
    }
}

/* The data file itself, read past the store. */
Test(pager, places_say_where_in_the_data_file_a_generation_is)
{
    char dir[128], path[200];

    FOR_EACH_PLACE(dir)
    {
        struct hl_store_place place[7];
        struct haul_store *s = durable(dir, HAUL_LATEST);
        unsigned char *m = memory(BLK);
        int fd;

        MUST_FAIL(-ENOENT, hl_store_places(s, 1, place));
        MUST(haul_extent_create(s, 1, SIZE));
        MUST(hl_store_places(s, 1, place));
        cr_assert_eq(place[3].bytes, 0, "never written");
        put_all(s, SIZE, 1);
        MUST(haul_store_commit(s, 1, NULL, 0));
        MUST(hl_store_places(s, 1, place));
        put_all(s, SIZE, 2); /* elsewhere: what the generation has stays */
        snprintf(path, sizeof path, "%s/" HL_STORE_DATA_NAME, hl_store_dir(s, 0));
        cr_assert_null(hl_store_dir(s, 1));
        fd = open(path, O_RDONLY);
        cr_assert_geq(fd, 0);
        for (unsigned i = 0; i < 7; i++) {
            cr_assert_eq(place[i].bytes, i < 6 ? BLK : 321);
            cr_assert_eq(pread(fd, m, place[i].bytes, (off_t)place[i].at), place[i].bytes);
            cr_assert(filled(m, i * BLK, place[i].bytes, 1), "block %u", i);
            cr_assert_eq(hl_checksum(m, place[i].bytes), place[i].sum);
        }
        close(fd);
        free(m);
        haul_store_close(s);
    }
}
