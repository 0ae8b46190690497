/* page_texts.h: the files of tools/pages, as they go into the pages that the command writes. */
#ifndef HL_PAGE_TEXTS_H
#define HL_PAGE_TEXTS_H

extern const char hl_page_css[];         /* pages/page.css */
extern const char hl_planner_html[];     /* pages/planner.html */
extern const char hl_plan_formulas_js[]; /* pages/plan_formulas.js */
extern const char hl_planner_js[];       /* pages/planner.js */

#endif
